# A task with reserved cores, or one that shares the other cores.
variable "image" { type = string }

variable "cores" {
  type    = number
  default = 0
}

job "cores" {
  group "cores" {
    restart {
      attempts = 0
      mode     = "fail"
    }

    task "cores" {
      driver = "oci-rs"

      config {
        image   = var.image
        command = "/bin/sh"
        args    = ["-c", "trap 'exit 0' TERM; while :; do sleep 0.1; done"]
      }

      resources {
        cores  = var.cores > 0 ? var.cores : null
        cpu    = var.cores > 0 ? null : 50
        memory = 32
      }
    }
  }
}
