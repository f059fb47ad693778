# The job of scripts/test-systemd.sh.
job "web" {
  group "web" {
    task "web" {
      driver = "oci-rs"

      config {
        image        = "@IMAGE@"
        command      = "sleep"
        args         = ["100000"]
        network_mode = "host"
      }

      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}
