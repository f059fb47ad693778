# A task with workload identities, Nomad's API at a socket, and an action.
variable "image" { type = string }

variable "user" {
  type    = string
  default = "app"
}

job "identity" {
  group "identity" {
    restart {
      attempts = 0
      mode     = "fail"
    }

    task "identity" {
      driver = "oci-rs"
      user   = var.user

      identity {
        env  = true
        file = true
      }

      identity {
        name = "elsewhere"
        aud  = ["elsewhere.example"]
        file = true
        env  = true
      }

      action "greet" {
        command = "/bin/sh"
        args    = ["-c", "echo hello, $(id -un) in $NOMAD_ALLOC_ID; exit 6"]
      }

      config {
        image   = var.image
        command = "/bin/sh"
        args    = ["-c", "echo kept >/alloc/data/note; trap 'exit 0' TERM; while :; do sleep 0.1; done"]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
