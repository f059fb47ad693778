# Files in tasks. The writer appends a line every second, the reader shows the file of the writer.
#
#   nomad job run examples/volumes.nomad.hcl
#   nomad alloc logs -job -task reader volumes

variable "image" {
  description = "An image that contains a shell"
  type        = string
  default     = "busybox:1.36"
}

job "volumes" {
  group "volumes" {
    task "writer" {
      driver = "oci-rs"

      config {
        image   = var.image
        command = "/bin/sh"
        args    = ["-c", ". /etc/writer.conf; while :; do echo \"$text\" >>/data/lines; touch /cache/seen; sleep 1; done"]
        init    = true

        # The image's files cannot be changed. Only the mounts below, /alloc, /local, /secrets and /tmp are writable.
        readonly_rootfs = true

        # Relative sources are inside the task's directory. The driver needs no permission of the operator for them.
        volumes = [
          "local/writer.conf:/etc/writer.conf:ro",
          "../alloc/data:/data",
        ]

        # A file system in memory, gone with the task.
        mount {
          type   = "tmpfs"
          target = "/cache"

          tmpfs_options {
            size = 1048576 # bytes
          }
        }
      }

      template {
        data        = "text='written by allocation {{ env \"NOMAD_ALLOC_ID\" }}'\n"
        destination = "local/writer.conf"
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }

    task "reader" {
      driver = "oci-rs"

      config {
        image   = var.image
        command = "/bin/sh"
        args    = ["-c", "until [ -s /alloc/data/lines ]; do sleep 1; done; exec tail -n +1 -f /alloc/data/lines"]
        init    = true
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
