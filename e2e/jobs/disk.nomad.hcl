# A task whose ephemeral disk goes with it to its next allocation, on the same node or on another one.
variable "image" { type = string }

# The name of the node.
variable "node" { type = string }

variable "edition" { type = string }

job "disk" {
  constraint {
    attribute = "${node.unique.name}"
    value     = var.node
  }

  group "disk" {
    ephemeral_disk {
      sticky  = true
      migrate = true
      size    = 20
    }

    restart {
      attempts = 0
      mode     = "fail"
    }

    task "disk" {
      driver = "oci-rs"
      user   = "app"

      config {
        image   = var.image
        command = "/bin/sh"
        args = ["-c", <<-SCRIPT
          echo $EDITION >>/local/editions
          cat /local/editions >/alloc/data/.new && mv /alloc/data/.new /alloc/data/editions
          trap 'exit 0' TERM
          while :; do sleep 0.1; done
        SCRIPT
        ]
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
