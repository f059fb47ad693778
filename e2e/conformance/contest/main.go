// Command contest drives Nomad's docker driver and the built plugin as a Nomad client does, in turns, and takes times:
// the docker driver in this process, as in Nomad's own, the plugin by go-plugin, each task with an allocation directory
// and a logmon process of its own.
//
// It prints one JSON object per measurement. bench/ starts it, provides dockerd, image and directory, and makes tables
// of what it says.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/hcl/v2/hcldec"
	"github.com/hashicorp/nomad/client/lib/cgroupslib"
	"github.com/hashicorp/nomad/client/lib/numalib"
	"github.com/hashicorp/nomad/drivers/docker"
	"github.com/hashicorp/nomad/helper/pluginutils/hclspecutils"
	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"github.com/zclconf/go-cty/cty/msgpack"
)

var (
	plugin    = flag.String("plugin", "", "the plugin's file")
	endpoint  = flag.String("docker", "", "where dockerd listens; empty leaves it out")
	execRoot  = flag.String("exec-root", "", "dockerd's exec root, by which its shims are known")
	image     = flag.String("image", "", "reference of an image with a busybox")
	directory = flag.String("directory", "", "where allocations and the plugin's directories lie")
	address   = flag.String("address", "", "the node's address for published ports")
	state     = flag.String("state", "", "the plugin's state directory")
	rounds    = flag.Int("rounds", 10, "lives of a task to measure")
	logs      = flag.Int("logs", 64, "MiB that a task writes to its log")
	idle      = flag.Int("idle", 20, "tasks that do nothing, for their memory")
)

// contender is a driver that has been configured.
type contender struct {
	name   string
	driver drivers.DriverPlugin
	schema hcldec.Spec
	// keeps tells the processes that the driver has for each task.
	keeps func(process) bool
}

// network is a kind of network that a task can have.
type network struct {
	name, mode string
	// publishes says whether port 80 of the task is a port of the node.
	publishes bool
}

// host is the network of every task whose network is not measured.
var host = network{name: "the host's network", mode: "host"}

var networks = []network{
	host,
	{name: "no network", mode: "none"},
	{name: "the driver's bridge", mode: "bridge"},
	{name: "the driver's bridge with a published port", mode: "bridge", publishes: true},
}

// measurement is what we print.
type measurement struct {
	Case  string  `json:"case"`
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

func say(what, name string, value float64) {
	// The pipe's reader is who wanted to know.
	_ = json.NewEncoder(os.Stdout).Encode(measurement{what, name, value})
}

func milliseconds(since time.Time) float64 { return float64(time.Since(since).Microseconds()) / 1000 }

func main() {
	flag.Parse()
	// Ctrl-C reaches all processes of the terminal. What this one made goes when it has ended by itself.
	signal.Ignore(os.Interrupt)
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "contest:", err)
		os.Exit(1)
	}
}

func run() error {
	topology := numalib.Scan(numalib.PlatformScanners(false))
	// What the client does once at its start.
	if err := cgroupslib.Init(hclog.NewNullLogger(), topology.UsableCores().String()); err != nil {
		return fmt.Errorf("cgroups: %w", err)
	}
	agent := &base.AgentConfig{Driver: &base.ClientDriverConfig{ClientMinPort: 14000, ClientMaxPort: 14512, Topology: topology}}
	ours, end, err := launch()
	if err != nil {
		return fmt.Errorf("the plugin: %w", err)
	}
	defer end()
	own := map[string]any{"state_dir": *state, "data_dir": filepath.Join(*directory, "data")}
	if err := configure(ours.driver, own, agent); err != nil {
		return fmt.Errorf("configuring the plugin: %w", err)
	}
	all := []*contender{ours}
	if *endpoint != "" {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		peer := &contender{name: "docker driver", driver: docker.NewDockerDriver(ctx, hclog.NewNullLogger())}
		peer.keeps = func(p process) bool {
			logger := p.parent == os.Getpid() && strings.Contains(p.line, "docker_logger")
			return logger || strings.Contains(p.line, "containerd-shim") && strings.Contains(p.line, *execRoot)
		}
		options := map[string]any{"endpoint": *endpoint, "gc": map[string]any{"image": false}}
		if err := configure(peer.driver, options, agent); err != nil {
			return fmt.Errorf("configuring the docker driver: %w", err)
		}
		all = append(all, peer)
	}
	for _, one := range all {
		spec, err := one.driver.TaskConfigSchema()
		if err == nil {
			one.schema, err = convert(spec)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", one.name, err)
		}
		if err := fingerprinted(one.driver); err != nil {
			return fmt.Errorf("%s: %w", one.name, err)
		}
	}
	return contest(all)
}

// launch starts the plugin in the way of Nomad's loader.
func launch() (*contender, func(), error) {
	client := goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig: base.Handshake,
		Plugins: map[string]goplugin.Plugin{
			base.PluginTypeBase:   &base.PluginBase{},
			base.PluginTypeDriver: drivers.NewDriverPlugin(nil, hclog.NewNullLogger()),
		},
		Cmd:              exec.Command(*plugin),
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		Logger:           hclog.NewNullLogger(),
	})
	rpc, err := client.Client()
	if err != nil {
		client.Kill()
		return nil, nil, err
	}
	raw, err := rpc.Dispense(base.PluginTypeDriver)
	if err != nil {
		client.Kill()
		return nil, nil, err
	}
	own := client.ReattachConfig().Pid
	monitors := func(p process) bool { return p.parent == own }
	return &contender{name: "oci-rs", driver: raw.(drivers.DriverPlugin), keeps: monitors}, client.Kill, nil
}

// configure hands a driver its plugin block.
func configure(driver drivers.DriverPlugin, block map[string]any, agent *base.AgentConfig) error {
	schema, err := driver.ConfigSchema()
	if err != nil {
		return err
	}
	spec, err := convert(schema)
	if err != nil {
		return err
	}
	value, diagnostics, errs := hclutils.ParseHclInterface(block, spec, nil)
	if diagnostics.HasErrors() {
		return fmt.Errorf("%v %v", diagnostics, errs)
	}
	packed, err := msgpack.Marshal(value, value.Type())
	if err != nil {
		return err
	}
	return driver.SetConfig(&base.Config{ApiVersion: drivers.ApiVersion010, PluginConfig: packed, AgentConfig: agent})
}

func convert(schema *hclspec.Spec) (hcldec.Spec, error) {
	spec, diagnostics := hclspecutils.Convert(schema)
	if diagnostics.HasErrors() {
		return nil, diagnostics
	}
	return spec, nil
}

// fingerprinted waits until the driver says that it works here.
func fingerprinted(driver drivers.DriverPlugin) error {
	prints, err := driver.Fingerprint(context.Background())
	if err != nil {
		return err
	}
	deadline := time.After(30 * time.Second)
	for {
		select {
		case print := <-prints:
			if print.Err != nil {
				return print.Err
			}
			if print.Health == drivers.HealthStateHealthy {
				return nil
			}
		case <-deadline:
			return fmt.Errorf("not healthy within 30 s")
		}
	}
}

// contest measures everything, contenders in turns so that what disturbs the machine disturbs all.
func contest(all []*contender) error {
	for round := 0; round <= *rounds; round++ {
		for _, one := range all {
			// The first round fills caches and is not counted.
			if err := one.life(round > 0); err != nil {
				return fmt.Errorf("%s: %w", one.name, err)
			}
		}
	}
	for round := 0; round <= *rounds; round++ {
		for _, on := range networks {
			for _, one := range all {
				if err := one.onNetwork(on, round > 0); err != nil {
					return fmt.Errorf("%s on %s: %w", one.name, on.name, err)
				}
			}
		}
	}
	for round := 0; round < 3; round++ {
		for _, one := range all {
			if err := one.logs(*logs << 20); err != nil {
				return fmt.Errorf("%s: %w", one.name, err)
			}
		}
	}
	for _, one := range all {
		if err := one.idle(*idle); err != nil {
			return fmt.Errorf("%s: %w", one.name, err)
		}
	}
	return nil
}

// life takes the times of three tasks: two that are told to end, and one that ends by itself.
func (c *contender) life(counts bool) error {
	tell := func(what string, value float64) {
		if counts {
			say(what, c.name, value)
		}
	}
	if err := c.first(tell); err != nil {
		return err
	}
	task, err := c.prepare("trap 'exit 0' TERM; echo ready; sleep 1000 & wait")
	if err != nil {
		return err
	}
	defer task.remove()
	begun := time.Now()
	if err := task.start(); err != nil {
		return err
	}
	tell("start, until StartTask returns", milliseconds(begun))
	if _, err := task.written(len("ready\n"), 30*time.Second); err != nil {
		return err
	}
	tell("start, until the first line is in Nomad's log file", milliseconds(begun))
	begun = time.Now()
	result, err := c.driver.ExecTask(task.config.ID, []string{"/bin/true"}, 10*time.Second)
	if err != nil {
		return err
	}
	if result.ExitResult.ExitCode != 0 {
		return fmt.Errorf("exec: %+v", result)
	}
	tell("exec of true", milliseconds(begun))
	begun = time.Now()
	if err := c.driver.StopTask(task.config.ID, 10*time.Second, "SIGTERM"); err != nil {
		return err
	}
	tell("stop of a task that obeys", milliseconds(begun))
	begun = time.Now()
	if err := c.driver.DestroyTask(task.config.ID, true); err != nil {
		return err
	}
	tell("destroy", milliseconds(begun))

	brief, err := c.prepare("exit 0")
	if err != nil {
		return err
	}
	defer brief.remove()
	begun = time.Now()
	if err := brief.start(); err != nil {
		return err
	}
	if err := brief.success(); err != nil {
		return err
	}
	tell("start of a task that ends at once, until its end is told", milliseconds(begun))
	return c.driver.DestroyTask(brief.config.ID, true)
}

// A command that goes on after its first line. Docker's collector of logs can lose the line of a task that ends at once.
const readyUntilStopped = "trap 'exit 0' TERM; echo ready; sleep 1000 & wait"

// first takes the time until a task's first line can be read where the driver's part ends and Nomad's begins: in the
// FIFO.
func (c *contender) first(tell func(what string, value float64)) error {
	task, err := c.prepareBare(readyUntilStopped, host)
	if err != nil {
		return err
	}
	defer task.remove()
	took, err := task.untilFirstByte()
	if err != nil {
		return err
	}
	tell("start, until the first line is in the FIFO that Nomad reads", took)
	if err := c.driver.StopTask(task.config.ID, 10*time.Second, "SIGTERM"); err != nil {
		return err
	}
	return c.driver.DestroyTask(task.config.ID, true)
}

// onNetwork takes the times of a task's start, until its first line is in the FIFO that Nomad reads, and of the removal
// of the task after its end.
func (c *contender) onNetwork(on network, counts bool) error {
	task, err := c.prepareBare(readyUntilStopped, on)
	if err != nil {
		return err
	}
	defer task.remove()
	started, err := task.untilFirstByte()
	if err != nil {
		return err
	}
	if err := c.driver.StopTask(task.config.ID, 10*time.Second, "SIGTERM"); err != nil {
		return err
	}
	if err := task.success(); err != nil {
		return err
	}
	begun := time.Now()
	if err := c.driver.DestroyTask(task.config.ID, true); err != nil {
		return err
	}
	if counts {
		say("start on "+on.name+", until the first line is in the FIFO that Nomad reads", c.name, started)
		say("destroy of an ended task on "+on.name, c.name, milliseconds(begun))
	}
	return nil
}

// logs takes the time from the start of a task that writes much to the last byte in Nomad's log files.
func (c *contender) logs(bytes int) error {
	line := strings.Repeat("x", 99)
	task, err := c.prepare(fmt.Sprintf("/bin/busybox yes %s | /bin/busybox head -c %d", line, bytes))
	if err != nil {
		return err
	}
	defer task.remove()
	begun := time.Now()
	if err := task.start(); err != nil {
		return err
	}
	// A collector that loses lines never comes to the last one.
	last, err := task.written(bytes, 10*time.Second)
	say(fmt.Sprintf("%d MiB of log lines, until the last is in Nomad's log files", bytes>>20), c.name, float64(last.Sub(begun).Microseconds())/1000)
	if err != nil {
		say(fmt.Sprintf("of %d MiB of log lines, KiB lost", bytes>>20), c.name, float64(bytes-task.size())/1024)
	}
	return c.driver.DestroyTask(task.config.ID, true)
}

// idle tells what the processes hold that a driver keeps for each task that does nothing: the command itself and
// Nomad's logmon, which are the same for all, left out. A page that processes share counts in shares.
func (c *contender) idle(count int) error {
	tasks := make([]*task, 0, count)
	defer func() {
		for _, task := range tasks {
			// What is left of it is found by who started us.
			_ = c.driver.DestroyTask(task.config.ID, true)
			task.remove()
		}
	}()
	for range count {
		task, err := c.prepare("echo ready; exec sleep 100000")
		if err != nil {
			return err
		}
		tasks = append(tasks, task)
		if err := task.start(); err != nil {
			return err
		}
	}
	// Whoever started something lets go of what that took.
	time.Sleep(3 * time.Second)
	found, total := 0, 0.0
	for _, process := range processes() {
		if c.keeps(process) {
			found++
			total += proportional(process.pid)
		}
	}
	if found < count {
		return fmt.Errorf("%d processes kept for %d tasks: whose memory would that be", found, count)
	}
	say("memory that is kept for an idle task, KiB", c.name, total/float64(count))
	return nil
}
