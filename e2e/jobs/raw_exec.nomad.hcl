# Shows that the agent works without the driver under test.
variable "args" { type = list(string) }

job "raw_exec" {
  type = "batch"

  group "raw_exec" {
    network {
      mode = "bridge"
      port "http" { to = 8080 }
    }

    restart {
      attempts = 0
      mode     = "fail"
    }

    task "raw_exec" {
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
