# A group without a network: its namespace has a loopback interface only.
variable "image" { type = string }

job "alone" {
  type = "batch"

  group "alone" {
    network {
      mode = "none"
    }

    restart {
      attempts = 0
      mode     = "fail"
    }

    reschedule {
      attempts  = 0
      unlimited = false
    }

    task "alone" {
      driver = "oci-rs"

      config {
        image   = var.image
        command = "/bin/sh"
        args = ["-c", <<-SCRIPT
          ip -o link show | cut -d: -f2 | cut -d@ -f1
          readlink /proc/self/ns/net >/alloc/data/alone
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
