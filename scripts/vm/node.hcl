# The agent of scripts/test-systemd.sh.
data_dir   = "/opt/nomad"
plugin_dir = "/usr/lib/oci-rs/plugins"
bind_addr  = "127.0.0.1"
log_level  = "INFO"

disable_update_check = true

advertise {
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}

server {
  enabled          = true
  bootstrap_expect = 1
}

# Without this block, the agent does not load the plugin.
plugin "oci-rs" {
  config {}
}

client {
  enabled           = true
  cpu_total_compute = 4000
  network_interface = "lo" # The machine has no other.

  options = {
    "fingerprint.denylist" = "env_aws,env_azure,env_digitalocean,env_gce,vault,consul"
  }
}
