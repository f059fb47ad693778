# Tasks that write a line for each start and end (image/bin/lifecycle), on the host network.
variable "image" { type = string }

variable "kind" {
  type    = string
  default = "service"
}

variable "count" {
  type    = number
  default = 1
}

variable "canary" {
  type    = number
  default = 0
}

variable "edition" {
  type    = string
  default = "first"
}

variable "attempts" {
  type    = number
  default = 0
}

variable "command" {
  type    = string
  default = "lifecycle"
}

variable "args" {
  type    = list(string)
  default = []
}

variable "kill_signal" {
  type    = string
  default = "SIGTERM"
}

# Long, because a busy machine may be slow to let a task end.
variable "kill_timeout" {
  type    = string
  default = "30s"
}

job "lifecycle" {
  type = var.kind

  group "lifecycle" {
    count = var.count

    dynamic "update" {
      for_each = var.kind == "service" ? [1] : []

      content {
        canary            = var.canary
        max_parallel      = 1
        min_healthy_time  = "1s"
        healthy_deadline  = "5m"
        progress_deadline = "10m"
      }
    }

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

    ephemeral_disk {
      size = 20
    }

    task "lifecycle" {
      driver       = "oci-rs"
      kill_signal  = var.kill_signal
      kill_timeout = var.kill_timeout

      config {
        image   = var.image
        command = var.command
        args    = var.args
        # @config@
      }

      env {
        EDITION = var.edition
      }

      logs {
        max_files     = 2
        max_file_size = 1
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
