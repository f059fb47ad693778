# The plugin block of a Nomad client. It belongs to the client's configuration, for example /etc/nomad.d/oci-rs.hcl.
# The file oci-rs must be in the client's plugin_dir. Every option is optional; docs/configuration.md lists all of them.

plugin "oci-rs" {
  config {
    # Images and writable layers. This directory must survive a reboot.
    data_dir = "/var/lib/oci-rs"

    # The state of running tasks. It may be gone after a reboot.
    state_dir = "/run/oci-rs"

    # An unused image is removed after this time, or earlier on a full disk.
    gc {
      image_delay = "1h"
    }

    # Two tries for docker.io: first the mirror, then docker.io itself.
    registry "docker.io" {
      mirrors = ["mirror.example"]
    }

    # Jobs may bind paths of the host. Without this block, they may only bind paths of their allocation.
    volumes {
      enabled = true
    }

    # What `nomad alloc exec` may choose: the user and the working directory.
    exec {
      user = true
      cwd  = true
    }

    # The highest number of processes of a task.
    pids_limit = 4096
  }
}
