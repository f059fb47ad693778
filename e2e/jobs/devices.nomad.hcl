# A shell in a task that reserves devices: those of the plugin `boxes` (conformance/deviceplugin), or of another name.
variable "image" { type = string }

variable "script" { type = string }

variable "device" {
  type    = string
  default = "oci-rs/box/cardboard"
}

variable "count" {
  type    = number
  default = 1
}

variable "user" {
  type    = string
  default = ""
}

variable "memory" {
  type    = number
  default = 32
}

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
      user   = var.user

      config {
        image   = var.image
        command = "/bin/sh"
        args    = ["-c", var.script]
      }

      resources {
        cpu    = 50
        memory = var.memory

        dynamic "device" {
          for_each = [var.device]
          labels   = [device.value]
          content {
            count = var.count
          }
        }
      }
    }
  }
}
