package conformance

import (
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/client/devicemanager"
	"github.com/hashicorp/nomad/client/devicemanager/state"
	"github.com/hashicorp/nomad/helper/pluginutils/loader"
	"github.com/hashicorp/nomad/helper/pluginutils/singleton"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/nomad/structs/config"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/shoenig/test/must"
)

// deviceLimit bounds the wait for a message of the device plugin.
const deviceLimit = 30 * time.Second

// memoryState is the manager's state without the client's database.
type memoryState struct {
	lock  sync.Mutex
	state *state.PluginState
}

func (s *memoryState) GetDevicePluginState() (*state.PluginState, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.state, nil
}

func (s *memoryState) PutDevicePluginState(state *state.PluginState) error {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.state = state
	return nil
}

// writeDevices writes a spec of the kind vendor.test/box with a device for each name, on these nodes.
func writeDevices(t *testing.T, path string, nodes map[string]string) {
	t.Helper()
	var devices []map[string]any
	for name, node := range nodes {
		edits := map[string]any{
			"deviceNodes": []map[string]any{{"path": "/dev/box", "hostPath": node, "permissions": "r"}},
			"env":         []string{"BOX=" + name},
			"mounts":      []map[string]any{{"hostPath": "/etc", "containerPath": "/box", "options": []string{"ro"}}},
		}
		devices = append(devices, map[string]any{"name": name, "containerEdits": edits})
	}
	spec := map[string]any{
		"cdiVersion": "0.6.0", "kind": "vendor.test/box", "devices": devices,
		"annotations": map[string]string{"oci-rs/memory": "2 GiB"},
	}
	text, err := json.Marshal(spec)
	must.NoError(t, err)
	// The file gets its name when it is whole.
	must.NoError(t, os.WriteFile(path+".tmp", text, 0o644))
	must.NoError(t, os.Rename(path+".tmp", path))
}

// health is the health of each device of the only group.
func health(groups []*structs.NodeDeviceResource) map[string]bool {
	found := map[string]bool{}
	for _, group := range groups {
		for _, device := range group.Instances {
			found[device.ID] = device.Healthy
		}
	}
	return found
}

// nextDevices waits until the manager reports devices with this health.
func nextDevices(
	t *testing.T, updates <-chan []*structs.NodeDeviceResource, expected map[string]bool,
) *structs.NodeDeviceResource {
	t.Helper()
	deadline := time.After(deviceLimit)
	for {
		select {
		case groups := <-updates:
			if found := health(groups); len(groups) == 1 && mapsEqual(found, expected) {
				return groups[0]
			}
		case <-deadline:
			t.Fatalf("the manager did not report %v", expected)
		}
	}
}

func mapsEqual(a, b map[string]bool) bool {
	if len(a) != len(b) {
		return false
	}
	for key, value := range a {
		if other, ok := b[key]; !ok || other != value {
			return false
		}
	}
	return true
}

// Nomad has no tests for device plugins of others. This is the agent's own code for them: loader and device manager.
func TestDevices(t *testing.T) {
	pluginDir, specs := t.TempDir(), t.TempDir()
	content, err := os.ReadFile(binary)
	must.NoError(t, err)
	executable := filepath.Join(pluginDir, "oci-rs-cdi")
	must.NoError(t, os.WriteFile(executable, content, 0o755))
	later := filepath.Join(specs, "later")
	writeDevices(t, filepath.Join(specs, "box.json"), map[string]string{"whole": "/dev/null", "later": later})

	logger := hclog.New(&hclog.LoggerOptions{Name: "devices", Level: hclog.Debug, Output: logWriter{t}})
	load := func(options map[string]any) (*loader.PluginLoader, error) {
		return loader.NewPluginLoader(&loader.PluginLoaderConfig{
			Logger: logger, PluginDir: pluginDir, SupportedVersions: loader.AgentSupportedApiVersions,
			Configs: []*config.PluginConfig{{Name: "oci-rs-cdi", Config: options}},
		})
	}
	_, err = load(map[string]any{"spec_dirs": []string{"relative"}})
	must.ErrorContains(t, err, "spec_dirs")
	plugins, err := load(map[string]any{"spec_dirs": []string{specs}})
	must.NoError(t, err)
	must.MapLen(t, 1, plugins.Catalog())
	must.SliceLen(t, 1, plugins.Catalog()[base.PluginTypeDevice])

	updates := make(chan []*structs.NodeDeviceResource, 16)
	storage := &memoryState{}
	manager := devicemanager.New(&devicemanager.Config{
		Logger: logger, Loader: singleton.NewSingletonLoader(logger, plugins), PluginConfig: &base.AgentConfig{},
		Updater:       func(devices []*structs.NodeDeviceResource) { updates <- devices },
		StatsInterval: 100 * time.Millisecond, State: storage,
	})
	manager.Run()
	stopped := false
	t.Cleanup(func() {
		if !stopped {
			manager.Shutdown()
		}
	})

	const whole, added = "vendor.test/box=whole", "vendor.test/box=later"
	group := nextDevices(t, updates, map[string]bool{whole: true, added: false})
	must.Eq(t, "vendor.test/box/cdi", group.ID().String())
	memory := group.Attributes["memory"]
	must.NotNil(t, memory)
	must.NoError(t, memory.Validate())
	must.Eq(t, "2GiB", memory.GoString())

	allocated := func(ids ...string) *structs.AllocatedDeviceResource {
		return &structs.AllocatedDeviceResource{Vendor: "vendor.test", Type: "box", Name: "cdi", DeviceIDs: ids}
	}
	reserved, err := manager.Reserve(allocated(whole))
	must.NoError(t, err)
	must.Eq(t, "whole", reserved.Envs["BOX"])
	must.SliceLen(t, 1, reserved.Devices)
	must.Eq(t, "/dev/null", reserved.Devices[0].HostPath)
	must.Eq(t, "r", reserved.Devices[0].CgroupPerms)
	must.SliceLen(t, 1, reserved.Mounts)
	must.True(t, reserved.Mounts[0].ReadOnly)
	_, err = manager.Reserve(allocated(added))
	must.ErrorContains(t, err, later)

	// A device node and a spec that come while the plugin runs.
	must.NoError(t, syscall.Mknod(later, syscall.S_IFCHR|0o600, 1<<8|3))
	nextDevices(t, updates, map[string]bool{whole: true, added: true})
	_, err = manager.Reserve(allocated(added))
	must.NoError(t, err)
	writeDevices(t, filepath.Join(specs, "box.json"), map[string]string{"third": "/dev/zero"})
	nextDevices(t, updates, map[string]bool{"vendor.test/box=third": true})

	// Statistics reach the manager.
	deadline := time.Now().Add(deviceLimit)
	for len(manager.AllStats()) == 0 || manager.AllStats()[0].InstanceStats["vendor.test/box=third"] == nil {
		must.True(t, time.Now().Before(deadline), must.Sprint("no statistics"))
		time.Sleep(50 * time.Millisecond)
	}

	// The manager starts a killed plugin again, and gets the devices again.
	pid := pluginPid(t, storage)
	must.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	writeDevices(t, filepath.Join(specs, "box.json"), map[string]string{"fourth": "/dev/zero"})
	nextDevices(t, updates, map[string]bool{"vendor.test/box=fourth": true})
	pid = pluginPid(t, storage)
	manager.Shutdown()
	stopped = true
	for syscall.Kill(pid, 0) == nil {
		must.True(t, time.Now().Before(deadline.Add(deviceLimit)), must.Sprint("the plugin outlives the manager"))
		time.Sleep(50 * time.Millisecond)
	}
}

// pluginPid is the plugin's process, as the manager has stored it for the next agent.
func pluginPid(t *testing.T, storage *memoryState) int {
	t.Helper()
	stored, err := storage.GetDevicePluginState()
	must.NoError(t, err)
	must.MapLen(t, 1, stored.ReattachConfigs)
	for _, reattach := range stored.ReattachConfigs {
		return reattach.Pid
	}
	return 0
}
