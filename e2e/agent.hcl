# The Nomad agent of demo and tests: server and client in one, reachable on the loopback address only, able to run beside
# other agents on the machine. scripts/demo.sh and the e2e kit fill in the names between @ signs.
# Not `-dev`: such an agent forgets its tasks when it stops.
name       = "@NAME@"
data_dir   = "@DIR@/nomad"
plugin_dir = "@DIR@/plugins"
bind_addr  = "127.0.0.1"
log_level  = "@LOG_LEVEL@"

disable_update_check = true
leave_on_interrupt   = false
leave_on_terminate   = false

advertise {
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}

ports {
  http = @HTTP_PORT@
  rpc  = @RPC_PORT@
  serf = @SERF_PORT@
}

server {
  enabled          = true
  bootstrap_expect = 1
  num_schedulers   = 2
}

client {
  enabled               = true
  servers               = ["127.0.0.1:@RPC_PORT@"]
  cni_path              = "@CNI_PATH@"
  bridge_network_name   = "@BRIDGE@"
  bridge_network_subnet = "@SUBNET@"
  min_dynamic_port      = @MIN_PORT@
  max_dynamic_port      = @MAX_PORT@

  # A busy test machine must not look full or dead.
  cpu_total_compute = 8000
  memory_total_mb   = 8192
  disk_total_mb     = 65536
  gc_interval       = "1h"

  options = {
    "fingerprint.denylist" = "env_aws,env_azure,env_digitalocean,env_gce,consul,vault"
    "driver.allowlist"     = "oci-rs,raw_exec"
  }
}

consul {
  auto_advertise   = false
  server_auto_join = false
  client_auto_join = false
}

telemetry {
  publish_allocation_metrics = true
  publish_node_metrics       = true
  collection_interval        = "1s"
}

plugin "raw_exec" {
  config {
    enabled = @RAW_EXEC@
  }
}

plugin "oci-rs" {
  config {
    state_dir = "@DIR@/state"
    data_dir  = "@DIR@/data"
  }
}
