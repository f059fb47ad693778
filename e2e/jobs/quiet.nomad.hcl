# A task without logs, whose stop begins after a delay.
variable "image" { type = string }

job "quiet" {
  group "quiet" {
    restart {
      attempts = 0
      mode     = "fail"
    }

    task "quiet" {
      driver         = "oci-rs"
      shutdown_delay = "2s"

      logs {
        disabled = true
      }

      config {
        image   = var.image
        command = "/bin/sh"
        args = ["-c", <<-SCRIPT
          head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2
          ls -lA /alloc/logs/.nomad | grep -c quiet >/alloc/data/logs
          touch /alloc/data/written
          trap 'touch /alloc/data/asked; exit 0' TERM
          while :; do sleep 0.1; done
        SCRIPT
        ]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
