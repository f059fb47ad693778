# A web server in the group's own network, reachable through a port of the node. The demo runs it, and tests do.
variable "image" { type = string }

job "web" {
  group "web" {
    network {
      mode = "bridge"
      port "http" { to = 8080 }
    }

    update {
      min_healthy_time = "1s"
    }

    task "web" {
      driver = "oci-rs"

      config {
        image = var.image
        # @config@
      }

      env {
        GREETING = "hello from the job"
      }

      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}
