server {
  enabled          = true
  bootstrap_expect = 1
  num_schedulers   = 2
}
