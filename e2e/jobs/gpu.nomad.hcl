# A shell in a task that reserves a GPU.
variable "image" { type = string }

variable "script" { type = string }

# The name of the device in Nomad: that of NVIDIA's device plugin, or of the driver's own.
variable "device" { type = string }

variable "user" {
  type    = string
  default = ""
}

job "gpu" {
  type = "batch"

  group "gpu" {
    restart {
      attempts = 0
      mode     = "fail"
    }

    reschedule {
      attempts  = 0
      unlimited = false
    }

    task "gpu" {
      driver = "oci-rs"
      user   = var.user

      config {
        image   = var.image
        command = "/bin/sh"
        args    = ["-c", var.script]
      }

      resources {
        cpu    = 100
        memory = 2048

        dynamic "device" {
          for_each = [var.device]
          labels   = [device.value]
          content {
            count = 1
          }
        }
      }
    }
  }
}
