package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/nomad/client/allocdir"
	"github.com/hashicorp/nomad/client/lib/cgroupslib"
	"github.com/hashicorp/nomad/client/logmon"
	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/helper/uuid"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/fsisolation"
	"golang.org/x/sys/unix"
)

// task is one that the client has prepared: directories, cgroup, and somebody who reads its logs: logmon or, where only
// the driver's part counts, we.
type task struct {
	driver  drivers.DriverPlugin
	config  *drivers.TaskConfig
	alloc   *allocdir.AllocDir
	group   cgroupslib.Lifecycle
	logDir  string
	logmon  *goplugin.Client
	collect logmon.LogMon
	// changes tells of every write into a log file.
	changes *os.File
	// fifos are the ends that we read, standard output's first.
	fifos []int
}

// prepare does what a client does before StartTask.
func (c *contender) prepare(script string) (*task, error) {
	t, err := c.outline(script, host)
	if err != nil {
		return nil, err
	}
	if t.collect, t.logmon, err = logmon.LaunchLogMon(hclog.NewNullLogger(), nil); err != nil {
		return nil, err
	}
	err = t.collect.Start(&logmon.LogConfig{
		LogDir: t.logDir, StdoutLogFile: t.config.Name + ".stdout", StderrLogFile: t.config.Name + ".stderr",
		StdoutFifo: t.config.StdoutPath, StderrFifo: t.config.StderrPath, MaxFiles: 10, MaxFileSizeMB: 10,
	})
	if err != nil {
		return nil, err
	}
	return t, t.watch()
}

// prepareBare does the same without a logmon: the log FIFOs are there, and we read them.
func (c *contender) prepareBare(script string, on network) (*task, error) {
	t, err := c.outline(script, on)
	if err != nil {
		return nil, err
	}
	for _, path := range []string{t.config.StdoutPath, t.config.StderrPath} {
		if err := unix.Mkfifo(path, 0o600); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		fifo, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		t.fifos = append(t.fifos, fifo)
	}
	return t, nil
}

// outline makes everything but who reads the logs.
func (c *contender) outline(script string, on network) (*task, error) {
	logger, allocID, name := hclog.NewNullLogger(), uuid.Generate(), "task"
	alloc := allocdir.NewAllocDir(logger, filepath.Join(*directory, "alloc"), filepath.Join(*directory, "mounts"), allocID)
	if err := alloc.Build(); err != nil {
		return nil, err
	}
	dir := alloc.NewTaskDir(&structs.Task{Name: name})
	if err := dir.Build(fsisolation.Image, nil, ""); err != nil {
		return nil, err
	}
	group := cgroupslib.Factory(allocID, name, false)
	if err := group.Setup(); err != nil {
		return nil, err
	}
	t := &task{driver: c.driver, alloc: alloc, group: group, logDir: dir.LogDir}
	t.config = &drivers.TaskConfig{
		ID:       fmt.Sprintf("%s/%s/%s", allocID, name, uuid.Generate()[:8]),
		Name:     name,
		AllocID:  allocID,
		AllocDir: alloc.AllocDir,
		JobName:  "contest", JobID: "contest", TaskGroupName: "group", Namespace: "default",
		NodeID: "00000000-0000-4000-8000-000000000002",
		Env:    map[string]string{"NOMAD_ALLOC_DIR": "/alloc", "NOMAD_TASK_DIR": "/local", "NOMAD_SECRETS_DIR": "/secrets"},
		Resources: &drivers.Resources{
			NomadResources: &structs.AllocatedTaskResources{
				Memory: structs.AllocatedMemoryResources{MemoryMB: 64},
				Cpu:    structs.AllocatedCpuResources{CpuShares: 100},
			},
			LinuxResources: &drivers.LinuxResources{
				MemoryLimitBytes: 64 << 20, CPUShares: 100, PercentTicks: 0.05,
				CpusetCgroupPath: cgroupslib.LinuxResourcesPath(allocID, name, false),
			},
		},
		StdoutPath: filepath.Join(dir.LogDir, "."+name+".stdout.fifo"),
		StderrPath: filepath.Join(dir.LogDir, "."+name+".stderr.fifo"),
	}
	options := map[string]any{
		"image": *image, "network_mode": on.mode, "command": "/bin/sh", "args": []string{"-c", script},
	}
	if on.publishes {
		options["ports"] = []string{"http"}
		t.config.Resources.Ports = &structs.AllocatedPorts{{Label: "http", Value: 20080, To: 80, HostIP: *address}}
	}
	value, diagnostics, errs := hclutils.ParseHclInterface(options, c.schema, nil)
	if diagnostics.HasErrors() {
		return nil, fmt.Errorf("%v %v", diagnostics, errs)
	}
	if err := t.config.EncodeDriverConfig(value); err != nil {
		return nil, err
	}
	return t, nil
}

// watch lets us be told of changes in the log files.
func (t *task) watch() error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return err
	}
	t.changes = os.NewFile(uintptr(fd), "inotify")
	_, err = unix.InotifyAddWatch(fd, t.logDir, unix.IN_MODIFY|unix.IN_CREATE)
	return err
}

func (t *task) start() error {
	_, _, err := t.driver.StartTask(t.config)
	return err
}

// size is what has come into the files of standard output so far.
func (t *task) size() int {
	files, total := []string(nil), int64(0)
	// The pattern is a good one.
	files, _ = filepath.Glob(filepath.Join(t.logDir, t.config.Name+".stdout.*"))
	for _, file := range files {
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
			total += info.Size()
		}
	}
	return int(total)
}

// written waits until so many bytes have come, or nothing comes any more; when the last of them came.
func (t *task) written(bytes int, patience time.Duration) (time.Time, error) {
	buffer, last := make([]byte, 64<<10), time.Now()
	for t.size() < bytes {
		if err := t.changes.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return last, err
		}
		if _, err := t.changes.Read(buffer); err != nil {
			return last, fmt.Errorf("%d of %d bytes in the log: %w", t.size(), bytes, err)
		}
		last = time.Now()
	}
	return last, nil
}

// untilFirstByte starts the task. It returns the milliseconds until its first line is where the driver's part ends and
// Nomad's begins: in the FIFO.
func (t *task) untilFirstByte() (float64, error) {
	type moment struct {
		time time.Time
		err  error
	}
	came := make(chan moment, 1)
	begun := time.Now()
	go func() {
		at, err := t.firstByte(30 * time.Second)
		came <- moment{at, err}
	}()
	if err := t.start(); err != nil {
		return 0, err
	}
	line := <-came
	return float64(line.time.Sub(begun).Microseconds()) / 1000, line.err
}

// firstByte waits until something can be read of standard output; when that was.
func (t *task) firstByte(patience time.Duration) (time.Time, error) {
	deadline := time.Now().Add(patience)
	for {
		left := time.Until(deadline).Milliseconds()
		events := []unix.PollFd{{Fd: int32(t.fifos[0]), Events: unix.POLLIN}}
		ready, err := unix.Poll(events, int(max(left, 0)))
		switch {
		case err == unix.EINTR:
		case err != nil:
			return time.Time{}, err
		case ready == 0 || events[0].Revents&unix.POLLIN == 0:
			return time.Time{}, fmt.Errorf("nothing came through the log FIFO (%#x)", events[0].Revents)
		default:
			return time.Now(), nil
		}
	}
}

// success waits for the task's end, which must be a good one.
func (t *task) success() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	results, err := t.driver.WaitTask(ctx, t.config.ID)
	if err != nil {
		return err
	}
	result, ok := <-results
	if !ok || result == nil {
		return fmt.Errorf("no end within 30 s")
	}
	if !result.Successful() {
		return fmt.Errorf("ended with %+v", result)
	}
	return nil
}

// remove takes away what prepare made, after DestroyTask.
func (t *task) remove() {
	// What resists is found by who started us.
	if t.logmon != nil {
		_ = t.changes.Close()
		_ = t.collect.Stop()
		t.logmon.Kill()
	}
	for _, fifo := range t.fifos {
		_ = unix.Close(fifo)
	}
	_ = t.group.Kill()
	_ = t.group.Teardown()
	_ = t.alloc.Destroy()
}

// process is one that runs now.
type process struct {
	pid, parent int
	line        string
}

// processes are all that run.
func processes() []process {
	var all []process
	// The pattern is a good one.
	directories, _ := filepath.Glob("/proc/[0-9]*")
	for _, directory := range directories {
		line, err := os.ReadFile(filepath.Join(directory, "cmdline"))
		if err != nil {
			// Gone meanwhile.
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(directory))
		parent := int(field(filepath.Join(directory, "status"), "PPid:"))
		all = append(all, process{pid, parent, strings.ReplaceAll(string(line), "\x00", " ")})
	}
	return all
}

// proportional is a process's share of the memory that it uses, in KiB.
func proportional(pid int) float64 {
	return field(fmt.Sprintf("/proc/%d/smaps_rollup", pid), "Pss:")
}

func field(file, name string) float64 {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) > 1 && words[0] == name {
			value, _ := strconv.ParseFloat(words[1], 64)
			return value
		}
	}
	return 0
}
