# Shows that agent and kit work, without the driver under test.
variable "args" { type = list(string) }

job "kit" {
  type = "batch"

  group "kit" {
    network {
      mode = "bridge"
      port "http" { to = 8080 }
    }

    restart {
      attempts = 0
      mode     = "fail"
    }

    task "kit" {
      driver = "raw_exec"

      config {
        command = "busybox"
        args    = var.args
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
