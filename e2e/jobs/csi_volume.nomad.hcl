# A task with a CSI volume.
variable "image" { type = string }

job "csi_volume" {
  type = "batch"

  group "csi_volume" {
    volume "data" {
      type            = "csi"
      source          = "words"
      access_mode     = "single-node-writer"
      attachment_mode = "file-system"
    }

    restart {
      attempts = 0
      mode     = "fail"
    }

    reschedule {
      attempts  = 0
      unlimited = false
    }

    task "csi_volume" {
      driver = "oci-rs"
      user   = "app"

      volume_mount {
        volume      = "data"
        destination = "/data"
      }

      config {
        image   = var.image
        command = "/bin/sh"
        args    = ["-c", "echo a word >>/data/words; cat /data/words"]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
