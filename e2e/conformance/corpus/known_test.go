package corpus

// renamed are jobs of other cases that a case of the corpus runs with the driver docker in place of oci-rs.
var renamed = []string{"csi_*.nomad.hcl"}

const (
	gpu        = "needs a device of a device plugin: devices_of_a_plugin, with the name oci-rs"
	vault      = "needs Vault: Nomad reads the secrets, the driver sees files and variables as those of a template"
	consulACL  = "needs a Consul with access control: Nomad logs in there, the driver has no part in it"
	enterprise = "needs Nomad or Consul Enterprise"
	csi        = "between Nomad and the CSI plugin: the driver gets the same mount as with the mode of csi_volume"
	ofDockerd  = "a plugin or network that the administrator of dockerd has installed: refused, with the remedy"
)

// notRun are the options and features of published jobs that no job of ours uses, each with its reason.
var notRun = map[string]string{
	"config.logging.type=fluentd":                          "needs a collector: the log drivers have tests of their own",
	"config.mount.volume_options.driver_config.name=pxd":   ofDockerd,
	"config.mount.volume_options.driver_config.options.*":  ofDockerd,
	"config.mounts.volume_options.driver_config.name=pxd":  ofDockerd,
	"config.mounts.volume_options.driver_config.options.*": ofDockerd,
	"config.volume_driver=pxd":                             ofDockerd,
	"config.network_mode=user-network":                     ofDockerd,
	"config.network_mode=weave":                            ofDockerd,
	"config.runtime=runsc":                                 "gVisor: refused, with the remedy",
	"config.storage_opt.*":                                 "needs loop devices: the tests over the wire have it",
	"config.template.data":                                 "a fault of the documentation: docker refuses it too",
	"config.template.destination":                          "a fault of the documentation: docker refuses it too",
	"group.Consul.Cluster":                                 enterprise,
	"group.Consul.Namespace":                               enterprise,
	"group.Services.Identity.Audience":                     consulACL,
	"group.Services.Identity.TTL":                          consulACL,
	"group.Volumes.*.AccessMode=multi-node-multi-writer":   csi,
	"group.Volumes.*.AccessMode=multi-node-single-writer":  csi,
	"group.Volumes.*.AccessMode=single-node-reader-only":   csi,
	"group.Volumes.*.AttachmentMode=block-device":          "needs a CSI plugin with block devices",
	"group.Volumes.*.PerAlloc":                             csi,
	"job.Multiregion.Regions.Count":                        enterprise,
	"job.Multiregion.Regions.Datacenters":                  enterprise,
	"job.Multiregion.Regions.Name":                         enterprise,
	"job.Multiregion.Strategy.MaxParallel":                 enterprise,
	"job.Multiregion.Strategy.OnFailure":                   enterprise,
	"task.CSIPluginConfig.Type=controller":                 csi,
	"task.CSIPluginConfig.Type=node":                       csi,
	"task.Resources.Devices.Affinities.LTarget":            gpu,
	"task.Resources.Devices.Affinities.Operand":            gpu,
	"task.Resources.Devices.Affinities.RTarget":            gpu,
	"task.Resources.Devices.Affinities.Weight":             gpu,
	"task.Resources.Devices.Constraints.LTarget":           gpu,
	"task.Resources.Devices.Constraints.Operand":           gpu,
	"task.Resources.Devices.Constraints.RTarget":           gpu,
	"task.Resources.Devices.Count":                         gpu,
	"task.Resources.Devices.Name":                          gpu,
	"task.Resources.Cores":                                 "agents of one machine share the cpusets: cores.rs has a case that runs alone, with oci-rs",
	"task.Secrets.Env.*":                                   "of a secrets plugin of the node, which Nomad runs",
	"task.Secrets.Provider=test_secret_plugin":             "a secrets plugin of the node, which Nomad runs",
	"task.Secrets.Provider=vault":                          vault,
	"task.Vault.ChangeMode":                                vault,
	"task.Vault.Cluster":                                   vault,
	"task.Vault.Env":                                       vault,
	"task.Vault.Policies":                                  vault,
	"task.Vault.Role":                                      vault,
}

// notRead are the published texts that are no jobs.
var notRead = map[string]string{
	"website/content/docs/job-declare/create-job.mdx#4":                   "a difference of two jobs",
	"website/content/docs/job-declare/strategy/rolling.mdx#2":             "a difference of two jobs",
	"website/content/docs/job-declare/strategy/rolling.mdx#7":             "a difference of two jobs",
	"website/content/docs/job-specification/lifecycle.mdx#2":              "a part is left out within a line",
	"website/content/docs/job-specification/sidecar_task.mdx#2":           "the defaults of a sidecar, which docker_mesh has",
	"website/content/docs/reference/hcl2/index.mdx#2":                     "shows the syntax",
	"website/content/docs/reference/runtime-variable-interpolation.mdx#1": "a part is left out within a line",
	"website/content/tools/nomad-pack/create-packs.mdx#9":                 "a template of a job",
	"website/content/docs/job-declare/task-driver/docker.mdx#7":           "the same in JSON",
}
