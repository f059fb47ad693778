# A parameterised batch job: a payload, required metadata, and artifacts whose source is in the metadata.
variable "image" { type = string }

job "dispatch" {
  type = "batch"

  parameterized {
    payload       = "required"
    meta_required = ["source", "color"]
  }

  group "dispatch" {
    restart {
      attempts = 0
      mode     = "fail"
    }

    reschedule {
      attempts  = 0
      unlimited = false
    }

    task "dispatch" {
      driver = "oci-rs"
      user   = "app"

      dispatch_payload {
        file = "input/payload.txt"
      }

      # An archive is unpacked, a file is stored as it is.
      artifact {
        source      = "${NOMAD_META_source}/files.tar.gz"
        destination = "local/files"
      }

      artifact {
        source      = "${NOMAD_META_source}/index.html"
        destination = "local/page.html"
        mode        = "file"

        options {
          archive = "false"
        }
      }

      config {
        image   = var.image
        command = "/bin/sh"
        args = ["-c", <<-SCRIPT
          echo "$NOMAD_META_color: $(cat /local/input/payload.txt)"
          cat /local/page.html
          /local/files/bin/tool
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
