//! Configurations that a driver must refuse, and values without an effect.

use crate::case::Case;

/// The cases of this area.
pub const CASES: &[Case] = &[
    Case::script("an_unknown_option", "true").config("no_such_option = true"),
    Case::script("an_option_of_the_wrong_type", "true").config("privileged = \"perhaps\""),
    Case::script("an_isolation_mode", "true").config("isolation = \"hyperv\""),
    Case::script("the_runtime_runc", "true").config("runtime = \"runc\""),
    Case::script("an_unknown_runtime", "true").config("runtime = \"no-such\""),
    Case::script("an_unknown_security_option", "true").config("security_opt = [\"no-such\"]"),
    Case::script("an_unknown_pid_mode", "true").config("pid_mode = \"no-such\""),
    Case::script("an_unknown_ipc_mode", "true").config("ipc_mode = \"no-such\""),
    Case::script("an_unknown_uts_mode", "true").config("uts_mode = \"no-such\""),
    Case::script("an_unknown_cgroup_namespace", "true").config("cgroupns = \"no-such\""),
    Case::script("user_namespace_of_the_host", "cat /proc/self/uid_map | tr -s ' '").config("userns_mode = \"host\""),
    Case::script("an_unknown_user_namespace", "true").config("userns_mode = \"no-such\""),
    Case::script("a_negative_pids_limit", "true").config("pids_limit = -1"),
    Case::script("a_bad_cfs_period", "true").config("cpu_hard_limit = true\ncpu_cfs_period = 2000000"),
    Case::script("a_bad_hostname", "hostname").config("hostname = \"no host name\""),
    Case::script("a_bad_oom_score", "true").config("oom_score_adj = 5000"),
    Case::script("a_volume_driver", "true").config("volume_driver = \"no-such\"\nvolumes = [\"name:/mnt\"]"),
    Case::script("options_of_a_volume_driver_without_a_device", "true").config(
        "mount {\nsource = \"parity-@DRIVER@-bad1\"\ntarget = \"/mnt\"\nvolume_options {\ndriver_config {\n\
         options {\ntype = \"tmpfs\"\n}\n}\n}\n}",
    ),
    Case::script("an_unknown_option_of_a_volume_driver", "true").config(
        "mount {\nsource = \"parity-@DRIVER@-bad2\"\ntarget = \"/mnt\"\nvolume_options {\ndriver_config {\n\
         options {\ntype = \"tmpfs\"\ndevice = \"tmpfs\"\nlabel = \"x\"\n}\n}\n}\n}",
    ),
    Case::script("a_wrong_mount_option_of_a_volume", "true").config(
        "mount {\nsource = \"parity-@DRIVER@-bad3\"\ntarget = \"/mnt\"\nvolume_options {\ndriver_config {\n\
         options {\ntype = \"tmpfs\"\ndevice = \"tmpfs\"\no = \"sizze=1m\"\n}\n}\n}\n}",
    ),
    Case::script("a_volume_on_a_missing_directory", "true").config(
        "mount {\nsource = \"parity-@DRIVER@-bad4\"\ntarget = \"/mnt\"\nvolume_options {\ndriver_config {\n\
         options {\ntype = \"none\"\ndevice = \"@SCRATCH@/none\"\no = \"bind\"\n}\n}\n}\n}",
    ),
    Case::script("options_without_an_effect", "echo runs").config(
        "container_exists_attempts = 3\nauth_soft_fail = true\nadvertise_ipv6_address = false\n\
         healthchecks {\ndisable = true\n}",
    ),
    Case::script("a_tiny_shm", "df -k /dev/shm | tail -1 | awk '{ print $2 }'").config("shm_size = 1"),
    Case::script("a_tiny_memory_limit", "echo runs").task("resources {\ncpu = 50\nmemory = 10\n}"),
];
