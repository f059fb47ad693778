server {
  enabled          = true
  bootstrap_expect = 1
  num_schedulers   = 2

  # Tasks may have a `memory_max`.
  default_scheduler_config {
    memory_oversubscription_enabled = true
  }
}
