# Both names of the driver in one group. The driver with docker's name makes the group's network.
variable "image" { type = string }

job "docker_pair" {
  type = "batch"

  group "pair" {
    network {
      mode = "bridge"
    }

    restart {
      attempts = 0
      mode     = "fail"
    }

    reschedule {
      attempts  = 0
      unlimited = false
    }

    dynamic "task" {
      for_each = { "one" = "docker", "two" = "oci-rs" }
      labels   = [task.key]

      content {
        driver = task.value

        config {
          image   = var.image
          command = "/bin/sh"
          args    = ["-c", "readlink /proc/self/ns/net"]
        }

        resources {
          cpu    = 50
          memory = 32
        }
      }
    }
  }
}
