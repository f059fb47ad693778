# A shell in a task that reserves devices of the plugin `boxes` (conformance/deviceplugin).
variable "image" { type = string }

variable "script" { type = string }

variable "boxes" { type = number }

job "devices" {
  type = "batch"

  group "devices" {
    restart {
      attempts = 0
      mode     = "fail"
    }

    reschedule {
      attempts  = 0
      unlimited = false
    }

    task "devices" {
      driver = "oci-rs"

      config {
        image   = var.image
        command = "/bin/sh"
        args    = ["-c", var.script]
      }

      resources {
        cpu    = 50
        memory = 32

        device "oci-rs/box/cardboard" {
          count = var.boxes
        }
      }
    }
  }
}
