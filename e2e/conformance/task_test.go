package conformance

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/testutils"
	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"
)

// exit waits for the end of a task.
func exit(t *testing.T, plugin *instance, id string) *drivers.ExitResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	results, err := plugin.driver.WaitTask(ctx, id)
	must.NoError(t, err)
	result := <-results
	must.NotNil(t, result)
	return result
}

func TestStartWaitDestroy(t *testing.T) {
	plugin := configured(t)
	cases := []struct {
		name, script string
		code         int
	}{
		{"success", "exit 0", 0},
		{"failure", "exit 3", 3},
		{"killed child", "sh -c 'kill -KILL $$'; exit $?", 137},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, task, _ := start(t, plugin, shell(c.script))
			result := exit(t, plugin, task.ID)
			must.Eq(t, c.code, result.ExitCode)
			must.False(t, result.OOMKilled)
			must.Eq(t, c.code == 0, result.Successful())
			// Whoever asks later gets the same answer, until the task is destroyed.
			must.Eq(t, c.code, exit(t, plugin, task.ID).ExitCode)
			status, err := plugin.driver.InspectTask(task.ID)
			must.NoError(t, err)
			must.Eq(t, drivers.TaskStateExited, status.State)
			must.NoError(t, plugin.driver.DestroyTask(task.ID, false))
			_, err = plugin.driver.InspectTask(task.ID)
			must.Error(t, err)
		})
	}
}

func TestExecStreaming(t *testing.T) {
	plugin := configured(t)
	// The isolation case looks for Nomad's cgroup in the task's own view, which a private namespace hides.
	config := shell("sleep 600")
	config["cgroupns"] = "host"
	harness, task, _ := start(t, plugin, config)
	must.NoError(t, harness.WaitUntilStarted(task.ID, 10*time.Second))
	testutils.ExecTaskStreamingConformanceTests(t, harness, task.ID)
}

func TestDNS(t *testing.T) {
	plugin := configured(t)
	cases := map[string]*drivers.DNSConfig{
		"none": nil,
		"basic": {
			Servers: []string{"1.1.1.1", "1.0.0.1"},
		},
		"full": {
			Servers:  []string{"1.1.1.1", "1.0.0.1"},
			Searches: []string{"local.test", "node.consul"},
			Options:  []string{"ndots:2", "edns0"},
		},
	}
	for name, dns := range cases {
		t.Run(name, func(t *testing.T) {
			harness, task := newTask(t, plugin, shell("sleep 600"))
			task.DNS = dns
			_, _, err := plugin.driver.StartTask(task)
			must.NoError(t, err)
			t.Cleanup(func() { _ = plugin.driver.DestroyTask(task.ID, true) })
			must.NoError(t, harness.WaitUntilStarted(task.ID, 10*time.Second))
			testutils.TestTaskDNSConfig(t, harness, task.ID, dns)
		})
	}
}

func TestExecAndSignal(t *testing.T) {
	plugin := configured(t)
	_, task, _ := start(t, plugin, shell("trap 'exit 21' USR1; while true; do sleep 0.1; done"))

	result, err := plugin.driver.ExecTask(task.ID, []string{"/bin/sh", "-c", "echo $FROM_JOB; exit 1"}, 10*time.Second)
	must.NoError(t, err)
	must.Eq(t, "yes\n", string(result.Stdout))
	must.Eq(t, 1, result.ExitResult.ExitCode)

	begin := time.Now()
	result, err = plugin.driver.ExecTask(task.ID, []string{"sleep", "60"}, time.Second)
	must.Less(t, 20*time.Second, time.Since(begin))
	must.True(t, err != nil || result.ExitResult.ExitCode != 0)

	must.Error(t, plugin.driver.SignalTask(task.ID, "SIGNONSENSE"))
	must.NoError(t, plugin.driver.SignalTask(task.ID, "SIGUSR1"))
	must.Eq(t, 21, exit(t, plugin, task.ID).ExitCode)
}

func TestStop(t *testing.T) {
	plugin := configured(t)
	t.Run("asked", func(t *testing.T) {
		_, task, _ := start(t, plugin, shell("trap 'exit 0' TERM; while true; do sleep 0.1; done"))
		settle()
		must.NoError(t, plugin.driver.StopTask(task.ID, 20*time.Second, ""))
		must.Eq(t, 0, exit(t, plugin, task.ID).ExitCode)
	})
	t.Run("asked with a signal", func(t *testing.T) {
		_, task, _ := start(t, plugin, shell("trap 'exit 12' USR2; while true; do sleep 0.1; done"))
		settle()
		must.NoError(t, plugin.driver.StopTask(task.ID, 20*time.Second, "SIGUSR2"))
		must.Eq(t, 12, exit(t, plugin, task.ID).ExitCode)
		// Nomad stops again what has ended: that is no error.
		must.NoError(t, plugin.driver.StopTask(task.ID, time.Second, ""))
	})
	t.Run("killed", func(t *testing.T) {
		_, task, _ := start(t, plugin, shell("trap '' TERM; while true; do sleep 0.1; done"))
		settle()
		begin := time.Now()
		must.NoError(t, plugin.driver.StopTask(task.ID, 2*time.Second, ""))
		must.Between(t, 2*time.Second, time.Since(begin), 8*time.Second)
		must.Eq(t, 137, exit(t, plugin, task.ID).ExitCode)
	})
	t.Run("destroy", func(t *testing.T) {
		_, task, _ := start(t, plugin, shell("sleep 600"))
		must.Error(t, plugin.driver.DestroyTask(task.ID, false), must.Sprint("it runs"))
		must.NoError(t, plugin.driver.DestroyTask(task.ID, true))
	})
	t.Run("unknown", func(t *testing.T) {
		must.NoError(t, plugin.driver.StopTask("no/such/task", time.Second, ""))
		must.NoError(t, plugin.driver.DestroyTask("no/such/task", true))
		must.Error(t, plugin.driver.SignalTask("no/such/task", "SIGTERM"))
	})
}

// settle gives a shell the time to set its traps: it cannot tell us.
func settle() { time.Sleep(500 * time.Millisecond) }

func TestLogs(t *testing.T) {
	plugin := configured(t)
	_, task, _ := start(t, plugin, shell("pattern out 20000; pattern err 10000 >&2"))
	must.Eq(t, 0, exit(t, plugin, task.ID).ExitCode)
	for stream, expected := range map[string][]byte{"stdout": pattern("out", 20000), "stderr": pattern("err", 10000)} {
		file := filepath.Join(task.AllocDir, "alloc/logs", "task."+stream+".0")
		must.Wait(t, wait.InitialSuccess(wait.ErrorFunc(func() error {
			content, err := os.ReadFile(file)
			if err == nil && !bytes.Equal(content, expected) {
				err = fmt.Errorf("%s: %d bytes, expected %d", file, len(content), len(expected))
			}
			return err
		}), wait.Timeout(10*time.Second), wait.Gap(50*time.Millisecond)))
	}
}

// pattern is what e2e/image/bin/pattern prints.
func pattern(word string, lines int) []byte {
	var text bytes.Buffer
	for line := 1; line < lines; line++ {
		fmt.Fprintf(&text, "%s %08d\n", word, line)
	}
	fmt.Fprintf(&text, "%s end", word)
	return text.Bytes()
}

// The limits are read in the container: hard limit and reservation of cgroup v1 or v2.
func TestMemoryLimits(t *testing.T) {
	const mib = 1 << 20
	plugin := configured(t)
	cases := []struct {
		name       string
		memory     structs.AllocatedMemoryResources
		hardLimit  int
		hard, soft string
	}{
		{"memory", structs.AllocatedMemoryResources{MemoryMB: 64}, 0, fmt.Sprint(64 * mib), ""},
		{"memory_max", structs.AllocatedMemoryResources{MemoryMB: 32, MemoryMaxMB: 96}, 0, fmt.Sprint(96 * mib), fmt.Sprint(32 * mib)},
		{"no limit", structs.AllocatedMemoryResources{MemoryMB: 32, MemoryMaxMB: -1}, 0, "", fmt.Sprint(32 * mib)},
		{"memory_hard_limit", structs.AllocatedMemoryResources{MemoryMB: 32}, 128, fmt.Sprint(128 * mib), fmt.Sprint(32 * mib)},
		{"both maxima", structs.AllocatedMemoryResources{MemoryMB: 32, MemoryMaxMB: 160}, 128, fmt.Sprint(160 * mib), fmt.Sprint(32 * mib)},
	}
	script := "cd /sys/fs/cgroup; cat memory/memory.limit_in_bytes memory/memory.soft_limit_in_bytes 2>/dev/null || cat memory.max memory.low"
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			config := shell("sleep 600")
			config["memory_hard_limit"] = c.hardLimit
			_, task := newTask(t, plugin, config)
			task.Resources.NomadResources.Memory = c.memory
			task.Resources.LinuxResources.MemoryLimitBytes = max(c.memory.MemoryMB, c.memory.MemoryMaxMB) * mib
			_, _, err := plugin.driver.StartTask(task)
			must.NoError(t, err)
			t.Cleanup(func() { _ = plugin.driver.DestroyTask(task.ID, true) })
			result, err := plugin.driver.ExecTask(task.ID, []string{"/bin/sh", "-c", script}, 10*time.Second)
			must.NoError(t, err)
			values := strings.Fields(string(result.Stdout))
			must.Len(t, 2, values)
			for i, expected := range []string{c.hard, c.soft} {
				// The default of version 1 is the largest number of whole pages. Version 2 has "max" and 0.
				unset := values[i] == "max" || values[i] == "0" || len(values[i]) > 18
				must.Eq(t, expected == "", unset, must.Sprint(values))
				must.True(t, unset || values[i] == expected, must.Sprint(values))
			}
		})
	}
}

func TestStats(t *testing.T) {
	plugin := configured(t)
	_, task, _ := start(t, plugin, shell("while true; do :; done"))
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	samples, err := plugin.driver.TaskStats(ctx, task.ID, 500*time.Millisecond)
	must.NoError(t, err)
	for i := range 3 {
		sample, ok := <-samples
		must.True(t, ok)
		memory, cpu := sample.ResourceUsage.MemoryStats, sample.ResourceUsage.CpuStats
		must.Positive(t, memory.RSS+memory.Usage)
		must.SliceNotEmpty(t, memory.Measured)
		if i == 2 {
			must.Greater(t, 10, cpu.Percent, must.Sprint("it is busy"))
			must.Positive(t, cpu.TotalTicks)
		}
	}
	must.NoError(t, plugin.driver.DestroyTask(task.ID, true))
	for range samples {
		continue
	}
}

func TestRecover(t *testing.T) {
	t.Run("running", func(t *testing.T) {
		first := configured(t)
		_, task, handle := start(t, first, shell("trap 'exit 33' TERM; while true; do sleep 0.1; done"))
		settle()
		first.kill(t)

		second := configured(t)
		must.NoError(t, second.driver.RecoverTask(stored(handle)))
		// A second time is what a reattached agent does.
		must.NoError(t, second.driver.RecoverTask(stored(handle)))
		result, err := second.driver.ExecTask(task.ID, []string{"echo", "still here"}, 10*time.Second)
		must.NoError(t, err)
		must.Eq(t, "still here\n", string(result.Stdout))
		must.NoError(t, second.driver.StopTask(task.ID, 20*time.Second, ""))
		must.Eq(t, 33, exit(t, second, task.ID).ExitCode)
		must.NoError(t, second.driver.DestroyTask(task.ID, false))
	})
	t.Run("ended meanwhile", func(t *testing.T) {
		first := configured(t)
		_, task, handle := start(t, first, shell("while [ ! -e /alloc/data/go ]; do sleep 0.1; done; exit 34"))
		first.kill(t)
		must.NoError(t, os.WriteFile(filepath.Join(task.AllocDir, "alloc/data/go"), nil, 0o644))
		time.Sleep(2 * time.Second)

		second := configured(t)
		must.NoError(t, second.driver.RecoverTask(stored(handle)))
		must.Eq(t, 34, exit(t, second, task.ID).ExitCode)
		must.NoError(t, second.driver.DestroyTask(task.ID, false))
	})
	t.Run("unknown", func(t *testing.T) {
		plugin := configured(t)
		_, task, handle := start(t, plugin, shell("exit 0"))
		exit(t, plugin, task.ID)
		must.NoError(t, plugin.driver.DestroyTask(task.ID, true))
		must.Error(t, plugin.driver.RecoverTask(stored(handle)))
		strange := stored(handle)
		strange.Version = 4711
		must.Error(t, plugin.driver.RecoverTask(strange))
	})
}

// stored is the handle as an agent has it after its own restart: the driver's configuration is not kept.
func stored(handle *drivers.TaskHandle) *drivers.TaskHandle {
	kept := handle.Copy()
	bare := &drivers.TaskConfig{
		ID: kept.Config.ID, Name: kept.Config.Name, AllocID: kept.Config.AllocID, AllocDir: kept.Config.AllocDir,
		Env: kept.Config.Env, Resources: kept.Config.Resources,
		StdoutPath: kept.Config.StdoutPath, StderrPath: kept.Config.StderrPath,
	}
	kept.Config = bare
	return kept
}

func TestStartErrors(t *testing.T) {
	plugin := configured(t)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	nobody := closed.Addr().String()
	must.NoError(t, closed.Close())
	cases := []struct {
		name        string
		config      map[string]any
		text        string
		recoverable bool
	}{
		{"no registry", map[string]any{"image": nobody + "/some/image:1"}, nobody, true},
		{"no image", map[string]any{"image": image + "-missing"}, "-missing", false},
		{"no command", map[string]any{"command": "/no/such/command"}, "/no/such/command", false},
		{"bad name", map[string]any{"image": "Not A Name"}, "Not A Name", false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, task := newTask(t, plugin, c.config)
			_, _, err := plugin.driver.StartTask(task)
			must.ErrorContains(t, err, c.text)
			must.Eq(t, c.recoverable, structs.IsRecoverable(err), must.Sprint(err))
			_, err = plugin.driver.InspectTask(task.ID)
			must.Error(t, err, must.Sprint("a task that failed to start must be forgotten"))
		})
	}
}

func TestStartTwice(t *testing.T) {
	plugin := configured(t)
	_, task, _ := start(t, plugin, shell("sleep 600"))
	_, _, err := plugin.driver.StartTask(task)
	must.ErrorContains(t, err, "already")
}
