# A docker job of any type, without a port, that runs while the driver of the node changes. It writes its starts and ends
# to a file, and ends when another file appears.
variable "image" { type = string }
variable "type" { type = string }
variable "count" { type = number }
# Empty, or one expression for a periodic job.
variable "crons" { type = list(string) }

job "docker_once" {
  type = var.type

  dynamic "periodic" {
    for_each = var.crons

    content {
      crons            = [periodic.value]
      prohibit_overlap = true
    }
  }

  group "once" {
    count = var.count

    restart {
      attempts = 60
      interval = "30m"
      delay    = "1s"
      mode     = "delay"
    }

    task "once" {
      driver = "docker"

      config {
        image   = var.image
        command = "/bin/sh"
        args = ["-c", <<-SCRIPT
          trap 'echo stopped >>/alloc/data/starts; exit 1' TERM
          echo started >>/alloc/data/starts
          while [ ! -e /alloc/data/go ]; do sleep 0.1; done
          echo finished >>/alloc/data/starts
        SCRIPT
        ]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
