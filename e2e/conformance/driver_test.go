// Package conformance drives the built plugin as Nomad does: with Nomad's own client code, and with the tests that
// Nomad's drivers have to pass. scripts/conformance.sh runs it and says where plugin, image and directory are.
package conformance

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/hcl/v2/hcldec"
	"github.com/hashicorp/nomad/client/lib/cgroupslib"
	"github.com/hashicorp/nomad/client/lib/numalib"
	"github.com/hashicorp/nomad/helper/pluginutils/hclspecutils"
	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/helper/uuid"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/testutils"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"github.com/shoenig/test/must"
	"github.com/zclconf/go-cty/cty/msgpack"
)

// What the shell around us prepares.
var (
	binary    = os.Getenv("OCI_RS_BIN")
	image     = os.Getenv("OCI_RS_IMAGE")
	directory = os.Getenv("OCI_RS_CONFORMANCE_DIR")
)

var topology = numalib.Scan(numalib.PlatformScanners(false))

func TestMain(m *testing.M) {
	if binary == "" || image == "" || directory == "" {
		fmt.Println("set OCI_RS_BIN, OCI_RS_IMAGE and OCI_RS_CONFORMANCE_DIR, or run scripts/conformance.sh")
		os.Exit(1)
	}
	// Allocation directories and sockets belong to this run, so that what is left of them is seen.
	os.Setenv("TMPDIR", directory)
	os.Setenv("OCI_RS_RUN_DIR", filepath.Join(directory, "run"))
	// What the client does once at its start.
	if err := cgroupslib.Init(hclog.NewNullLogger(), topology.UsableCores().String()); err != nil {
		fmt.Println("cgroups:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// instance is a running plugin process and the two sides of it.
type instance struct {
	client *goplugin.Client
	base   base.BasePlugin
	driver drivers.DriverPlugin
}

// launch starts the plugin in the way of Nomad's loader, without configuration.
func launch(t *testing.T) *instance {
	t.Helper()
	logger := hclog.New(&hclog.LoggerOptions{Name: "plugin", Level: hclog.Debug, Output: logWriter{t}})
	client := goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig: base.Handshake,
		Plugins: map[string]goplugin.Plugin{
			base.PluginTypeBase:   &base.PluginBase{},
			base.PluginTypeDriver: drivers.NewDriverPlugin(nil, logger),
		},
		Cmd:              exec.Command(binary),
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		Logger:           logger,
	})
	t.Cleanup(client.Kill)
	rpc, err := client.Client()
	must.NoError(t, err)
	rawBase, err := rpc.Dispense(base.PluginTypeBase)
	must.NoError(t, err)
	rawDriver, err := rpc.Dispense(base.PluginTypeDriver)
	must.NoError(t, err)
	return &instance{client, rawBase.(base.BasePlugin), rawDriver.(drivers.DriverPlugin)}
}

// logWriter shows the plugin's log next to the test that caused it.
type logWriter struct{ t *testing.T }

func (w logWriter) Write(line []byte) (int, error) {
	// A plugin may speak after its test is over, which testing does not forgive.
	defer func() { _ = recover() }()
	w.t.Log(strings.TrimSpace(string(line)))
	return len(line), nil
}

// configured starts the plugin and configures it as the agent does for the instance that it keeps.
func configured(t *testing.T) *instance {
	t.Helper()
	plugin := launch(t)
	schema, err := plugin.base.ConfigSchema()
	must.NoError(t, err)
	config := encode(t, schema, map[string]any{
		"state_dir": filepath.Join(directory, "state"),
		"data_dir":  filepath.Join(directory, "data"),
		"network":   []map[string]any{{"default_mode": "host"}},
	})
	must.NoError(t, plugin.base.SetConfig(&base.Config{
		ApiVersion:   drivers.ApiVersion010,
		PluginConfig: config,
		AgentConfig: &base.AgentConfig{Driver: &base.ClientDriverConfig{
			ClientMinPort: 14000, ClientMaxPort: 14512, Topology: topology,
		}},
	}))
	return plugin
}

// kill ends the plugin's process without a word.
func (i *instance) kill(t *testing.T) {
	t.Helper()
	must.NoError(t, syscall.Kill(i.client.ReattachConfig().Pid, syscall.SIGKILL))
	for !i.client.Exited() {
		continue
	}
}

// encode turns a configuration into bytes as Nomad does: through the plugin's own schema, every key present.
func encode(t *testing.T, schema *hclspec.Spec, config map[string]any) []byte {
	t.Helper()
	spec := convert(t, schema)
	value, diagnostics, errs := hclutils.ParseHclInterface(config, spec, nil)
	must.Eq(t, 0, len(errs), must.Sprintf("%v", errs))
	must.False(t, diagnostics.HasErrors(), must.Sprintf("%v", diagnostics))
	bytes, err := msgpack.Marshal(value, value.Type())
	must.NoError(t, err)
	return bytes
}

func convert(t *testing.T, schema *hclspec.Spec) hcldec.Spec {
	t.Helper()
	spec, diagnostics := hclspecutils.Convert(schema)
	must.False(t, diagnostics.HasErrors(), must.Sprintf("%v", diagnostics))
	return spec
}

// newTask makes a task with the directories, log pipes and cgroup that the client would have made for it.
func newTask(t *testing.T, plugin *instance, config map[string]any) (*testutils.DriverHarness, *drivers.TaskConfig) {
	t.Helper()
	allocID := uuid.Generate()
	task := &drivers.TaskConfig{
		ID:      fmt.Sprintf("%s/task/%s", allocID, uuid.Generate()[:8]),
		Name:    "task",
		AllocID: allocID,
		JobName: "conformance", JobID: "conformance", TaskGroupName: "group", Namespace: "default",
		Env: map[string]string{"FROM_JOB": "yes"},
		Resources: &drivers.Resources{
			NomadResources: &structs.AllocatedTaskResources{
				Memory: structs.AllocatedMemoryResources{MemoryMB: 128},
				Cpu:    structs.AllocatedCpuResources{CpuShares: 200},
			},
			LinuxResources: &drivers.LinuxResources{
				MemoryLimitBytes: 128 << 20,
				CPUShares:        200,
				PercentTicks:     0.1,
				CpusetCgroupPath: cgroupslib.LinuxResourcesPath(allocID, "task", false),
			},
		},
	}
	all := map[string]any{"image": image}
	for key, value := range config {
		all[key] = value
	}
	schema, err := plugin.driver.TaskConfigSchema()
	must.NoError(t, err)
	value, diagnostics, errs := hclutils.ParseHclInterface(all, convert(t, schema), nil)
	must.Eq(t, 0, len(errs), must.Sprintf("%v", errs))
	must.False(t, diagnostics.HasErrors(), must.Sprintf("%v", diagnostics))
	must.NoError(t, task.EncodeDriverConfig(value))

	harness := testutils.NewDriverHarness(t, plugin.driver)
	t.Cleanup(harness.MkAllocDir(task, true))
	harness.MakeTaskCgroup(allocID, task.Name)
	return harness, task
}

// start runs a task and sees to its end.
func start(t *testing.T, plugin *instance, config map[string]any) (*testutils.DriverHarness, *drivers.TaskConfig, *drivers.TaskHandle) {
	t.Helper()
	harness, task := newTask(t, plugin, config)
	handle, network, err := plugin.driver.StartTask(task)
	must.NoError(t, err)
	must.Nil(t, network, must.Sprint("group networking needs no network of the driver's"))
	must.NotNil(t, handle)
	must.NotNil(t, handle.Config)
	must.Eq(t, task.ID, handle.Config.ID)
	t.Cleanup(func() { _ = plugin.driver.DestroyTask(task.ID, true) })
	return harness, task, handle
}

// shell is the configuration of a task that runs a shell script.
func shell(script string) map[string]any {
	return map[string]any{"command": "/bin/sh", "args": []string{"-c", script}}
}
