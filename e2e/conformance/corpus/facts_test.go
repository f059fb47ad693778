package corpus

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
)

// A fact is an option that a job with a task of the docker driver uses: `config` options of the task, and what the job,
// its groups and its tasks have in Nomad's own terms. A fact ends in the value where the value is one of few.
type facts map[string]bool

// names are the paths that only name or describe something.
var names = []string{
	"job.ID", "job.Name", "job.UI", "job.Meta", "job.Region", "job.Datacenters", "job.Namespace", "group.Name",
	"group.Meta", "group.Networks.DynamicPorts.Label", "group.Networks.ReservedPorts.Label", "task.Name", "task.Driver",
	"task.Meta", "task.Env", "task.Resources.CPU", "task.Resources.MemoryMB", "task.Resources.DiskMB",
	"config.image", "config.command", "config.args",
}

// open are the paths below which a job chooses the names.
var open = []string{
	"group.Volumes", "group.Networks.CNI.Args", "group.Services.Connect.SidecarService.Proxy.Upstreams.Config",
	"group.Services.Connect.SidecarTask.Config", "task.Secrets.Config", "task.Secrets.Env",
	"config.labels", "config.port_map",
	"config.sysctl", "config.ulimit", "config.storage_opt", "config.logging.config", "config.mount.volume_options.labels",
	"config.mount.volume_options.driver_config.options", "config.mounts.volume_options.labels",
	"config.mounts.volume_options.driver_config.options",
}

// valued are the paths with one of few values.
var valued = []string{
	"job.Type", "group.Networks.Mode", "group.Volumes.*.Type", "group.Volumes.*.AccessMode",
	"group.Volumes.*.AttachmentMode", "group.Services.Provider", "group.Services.Checks.Type", "group.Services.Checks.OnUpdate",
	"task.Services.Provider", "task.Services.AddressMode", "task.Services.Checks.Type", "task.Services.Checks.AddressMode",
	"task.CSIPluginConfig.Type", "task.Identities.ChangeMode", "task.Lifecycle.Hook", "task.Templates.ChangeMode",
	"task.Secrets.Provider", "config.network_mode", "config.ipc_mode", "config.runtime", "config.mount.type",
	"config.mounts.type", "config.logging.type", "config.volume_driver",
	"config.mount.volume_options.driver_config.name", "config.mounts.volume_options.driver_config.name",
	"config.mount.bind_options.propagation", "config.mounts.bind_options.propagation",
}

// factsOf returns the facts of a job. They are empty if no task has the driver docker. Tasks with `driver = "oci-rs"`
// count too, because a case can run them under docker's name.
func factsOf(t *testing.T, job *api.Job) facts {
	all, found := facts{}, false
	isDocker := func(task *api.Task) bool { return task.Driver == "docker" || task.Driver == "oci-rs" }
	for _, group := range job.TaskGroups {
		if !slices.ContainsFunc(group.Tasks, isDocker) {
			continue
		}
		found = true
		for _, task := range group.Tasks {
			if isDocker(task) {
				config := task.Config
				all.walk("config", config)
				plain := *task
				plain.Config = nil
				all.add(t, "task", &plain)
			}
		}
		plain := *group
		plain.Tasks = nil
		all.add(t, "group", &plain)
	}
	if found {
		plain := *job
		plain.TaskGroups = nil
		all.add(t, "job", &plain)
	}
	return all
}

func (f facts) add(t *testing.T, prefix string, value any) {
	text, err := json.Marshal(value)
	must.NoError(t, err)
	var tree any
	must.NoError(t, json.Unmarshal(text, &tree))
	f.walk(prefix, tree)
}

func (f facts) walk(path string, value any) {
	if slices.Contains(names, path) {
		return
	}
	switch value := value.(type) {
	case nil:
	case map[string]any:
		for key, inner := range value {
			if slices.Contains(open, path) {
				key = "*"
			}
			f.walk(path+"."+key, inner)
		}
	case []map[string]any:
		for _, inner := range value {
			f.walk(path, inner)
		}
	case []any:
		for _, inner := range value {
			f.walk(path, inner)
		}
	default:
		text := fmt.Sprint(value)
		if text == "" || text == "0" || text == "false" && !strings.HasPrefix(path, "config.") {
			return
		}
		switch {
		case path == "group.Networks.Mode" && strings.HasPrefix(text, "cni/"):
			path += "=cni/NAME"
		case slices.Contains(valued, path):
			path += "=" + text
		case path == "config.volumes" || path == "config.mount.source" || path == "config.mounts.source":
			path += "=" + kindOfSource(text)
		}
		f[path] = true
	}
}

// kindOfSource tells how the source of a mount is written.
func kindOfSource(text string) string {
	source, _, _ := strings.Cut(text, ":")
	switch {
	case strings.Contains(source, "${"):
		return "variable"
	case strings.HasPrefix(source, "/"):
		return "absolute"
	default:
		return "relative or a name"
	}
}

// sorted returns the facts in order.
func (f facts) sorted() []string {
	var all []string
	for fact := range f {
		all = append(all, fact)
	}
	slices.Sort(all)
	return all
}
