# A task that writes a log of its own, and more output than one of Nomad's log files holds. Its neighbour collects both
# in the allocation's log directory; it starts first, so the files appear after its first look.
variable "image" { type = string }

job "logs" {
  type = "batch"

  group "logs" {
    restart {
      attempts = 0
      mode     = "fail"
    }

    reschedule {
      attempts  = 0
      unlimited = false
    }

    task "ship" {
      driver = "oci-rs"
      user   = "1000"

      lifecycle {
        hook    = "prestart"
        sidecar = true
      }

      config {
        image   = var.image
        command = "/bin/sh"
        args = ["-c", <<-SCRIPT
          cd /alloc/logs
          collected() { cat write.stdout.* 2>/dev/null | wc -c; }
          until [ -s app.log ] && [ -e write.stdout.1 ] && [ $(collected) = 2097152 ]; do sleep 0.1; done
          cat app.log
          collected
          touch /alloc/data/done
          while :; do sleep 0.1; done
        SCRIPT
        ]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }

    task "write" {
      driver = "oci-rs"

      logs {
        max_files     = 4
        max_file_size = 1
      }

      config {
        image   = var.image
        command = "/bin/sh"
        args = ["-c", <<-SCRIPT
          echo own >$NOMAD_ALLOC_DIR/logs/app.log
          yes 1234567 | head -c 2097152
          until [ -e /alloc/data/done ]; do sleep 0.1; done
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
