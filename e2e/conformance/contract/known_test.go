package contract

const nomadDriver = "hashicorp.nomad.plugins.drivers.proto."

// messageDifferences are the messages, fields and methods in which the driver's protocol is not that of a version.
var messageDifferences = []difference{
	{nomadDriver + "FingerprintResponse.err", "1.11.2", "Nomad reads it since 1.11.3"},
	{nomadDriver + "Mount.request_name", "", "Nomad sends it since 2.0.1"},
	{nomadDriver + "Driver.Init", "", "Nomad calls it since 2.0.4"},
	{nomadDriver + "Driver.Shutdown", "", "Nomad calls it since 2.0.4"},
	{nomadDriver + "InitRequest", "", "Nomad calls Init since 2.0.4"},
	{nomadDriver + "InitResponse", "", "Nomad calls Init since 2.0.4"},
	{nomadDriver + "ShutdownRequest", "", "Nomad calls Shutdown since 2.0.4"},
	{nomadDriver + "ShutdownResponse", "", "Nomad calls Shutdown since 2.0.4"},
	{nomadDriver + "DriverCapabilities.remote_tasks", "1.9.4", "for drivers of remote tasks. Nomad dropped it in 1.10"},
	{
		nomadDriver + "DriverCapabilities.MountConfigs.UNKNOWN_MOUNTS", "",
		"a second name of the number of ANY_MOUNTS. An enum in Rust cannot have two names for one number",
	},
}

// optionDifferences are docker's options that the driver's schema lacks or has with another type.
var optionDifferences = []difference{}
