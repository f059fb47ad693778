package conformance

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/helper/pluginutils/loader"
	"github.com/hashicorp/nomad/nomad/structs/config"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/fsisolation"
	"github.com/shoenig/test/must"
)

func TestInfoSchemasAndCapabilities(t *testing.T) {
	plugin := launch(t)
	info, err := plugin.base.PluginInfo()
	must.NoError(t, err)
	must.Eq(t, "oci-rs", info.Name)
	must.Eq(t, base.PluginTypeDriver, info.Type)
	must.SliceContains(t, info.PluginApiVersions, drivers.ApiVersion010)

	schema, err := plugin.base.ConfigSchema()
	must.NoError(t, err)
	convert(t, schema)
	schema, err = plugin.driver.TaskConfigSchema()
	must.NoError(t, err)
	convert(t, schema)

	capabilities, err := plugin.driver.Capabilities()
	must.NoError(t, err)
	must.Eq(t, fsisolation.Image, capabilities.FSIsolation)
	must.True(t, capabilities.SendSignals)
	must.True(t, capabilities.Exec)
	must.False(t, capabilities.MustInitiateNetwork)
	must.SliceContains(t, capabilities.NetIsolationModes, drivers.NetIsolationModeGroup)
	must.SliceContains(t, capabilities.NetIsolationModes, drivers.NetIsolationModeHost)
}

func TestFingerprint(t *testing.T) {
	plugin := configured(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	fingerprints, err := plugin.driver.Fingerprint(ctx)
	must.NoError(t, err)
	select {
	case fingerprint := <-fingerprints:
		must.NotNil(t, fingerprint)
		must.NoError(t, fingerprint.Err)
		must.Eq(t, drivers.HealthStateHealthy, fingerprint.Health, must.Sprint(fingerprint.HealthDescription))
		must.MapContainsKey(t, fingerprint.Attributes, "driver.oci-rs.version")
	case <-time.After(10 * time.Second):
		t.Fatal("the first fingerprint must come at once: the node's registration waits for it")
	}
}

// Nomad's loader: found in the plugin directory, launched three times, configured from the agent's configuration.
func TestLoader(t *testing.T) {
	pluginDir := t.TempDir()
	content, err := os.ReadFile(binary)
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(filepath.Join(pluginDir, "oci-rs"), content, 0o755))
	load := func(options map[string]any) (*loader.PluginLoader, error) {
		return loader.NewPluginLoader(&loader.PluginLoaderConfig{
			Logger:            hclog.NewNullLogger(),
			PluginDir:         pluginDir,
			Configs:           []*config.PluginConfig{{Name: "oci-rs", Config: options}},
			SupportedVersions: loader.AgentSupportedApiVersions,
		})
	}

	plugins, err := load(map[string]any{
		"state_dir": filepath.Join(directory, "state"), "data_dir": filepath.Join(directory, "data"),
	})
	must.NoError(t, err)
	instance, err := plugins.Dispense("oci-rs", base.PluginTypeDriver, &base.AgentConfig{}, hclog.NewNullLogger())
	must.NoError(t, err)
	defer instance.Kill()
	_, ok := instance.Plugin().(drivers.DriverPlugin)
	must.True(t, ok)

	_, err = load(map[string]any{"no_such_option": true})
	must.ErrorContains(t, err, "no_such_option")
}
