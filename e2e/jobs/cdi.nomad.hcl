# A shell in a task that reserves a device of the driver's own device plugin.
variable "image" { type = string }

variable "script" { type = string }

job "cdi" {
  type = "batch"

  group "cdi" {
    restart {
      attempts = 0
      mode     = "fail"
    }

    reschedule {
      attempts  = 0
      unlimited = false
    }

    task "cdi" {
      driver = "oci-rs"

      config {
        image        = var.image
        command      = "/bin/sh"
        args         = ["-c", var.script]
        network_mode = "none"
      }

      resources {
        cpu    = 50
        memory = 32

        device "vendor.test/box" {
          count = 1

          constraint {
            attribute = "${device.attr.memory}"
            operator  = ">="
            value     = "2 GiB"
          }
        }
      }
    }
  }
}
