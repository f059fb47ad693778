# A service with one dynamic host volume, mounted three times: to write, to read only, and with what the host mounts in
# it later.
variable "image" { type = string }

variable "volume" { type = string }

job "volume" {
  group "volume" {
    volume "data" {
      type            = "host"
      source          = var.volume
      access_mode     = "single-node-writer"
      attachment_mode = "file-system"
    }

    update {
      min_healthy_time = "1s"
    }

    task "volume" {
      driver = "oci-rs"

      config {
        image   = var.image
        command = "/bin/sh"
        args    = ["-c", "trap 'exit 0' TERM; echo started >> /data/starts; while :; do sleep 0.1; done"]
      }

      volume_mount {
        volume           = "data"
        destination      = "/data"
        propagation_mode = "private"
      }

      volume_mount {
        volume           = "data"
        destination      = "/readonly"
        read_only        = true
        propagation_mode = "private"
      }

      volume_mount {
        volume           = "data"
        destination      = "/following"
        propagation_mode = "host-to-task"
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
