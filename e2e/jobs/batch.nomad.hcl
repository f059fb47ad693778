# One command that ends.
variable "image" { type = string }

variable "command" {
  type    = string
  default = "/bin/sh"
}

variable "args" {
  type    = list(string)
  default = []
}

variable "user" {
  type    = string
  default = ""
}

variable "attempts" {
  type    = number
  default = 0
}

variable "memory" {
  type    = number
  default = 64
}

# 0 is unset, and -1 is no limit.
variable "memory_max" {
  type    = number
  default = 0
}

job "batch" {
  type = "batch"

  group "batch" {
    restart {
      attempts = var.attempts
      interval = "10m"
      delay    = "1s"
      mode     = "fail"
    }

    reschedule {
      attempts  = 0
      unlimited = false
    }

    task "batch" {
      driver = "oci-rs"
      user   = var.user

      config {
        image   = var.image
        command = var.command
        args    = var.args
        # @config@
      }

      template {
        data        = "from a template\n"
        destination = "local/template.txt"
      }

      env {
        FROM_JOB = "set by the job"
      }

      resources {
        cpu        = 100
        memory     = var.memory
        memory_max = var.memory_max
      }
    }
  }
}
