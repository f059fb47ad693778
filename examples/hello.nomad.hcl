# A batch job: it runs one command and ends.
#
#   nomad job run examples/hello.nomad.hcl
#   nomad alloc logs -job hello

variable "image" {
  description = "An image that contains a shell"
  type        = string
  default     = "busybox:1.36"
}

variable "name" {
  description = "The name in the greeting"
  type        = string
  default     = "world"
}

job "hello" {
  type = "batch"

  group "hello" {
    # Two attempts after a failure. A command that exits with 0 is not repeated.
    restart {
      attempts = 2
      interval = "10m"
      delay    = "5s"
      mode     = "fail"
    }

    task "hello" {
      driver = "oci-rs"

      config {
        image   = var.image
        command = "/bin/sh"
        args    = ["-c", "echo \"hello, $NAME\"; echo \"on $(uname -sr) as $(id -un)\" >&2"]
      }

      env {
        NAME = var.name
      }

      resources {
        cpu    = 100 # MHz
        memory = 64  # MiB
      }
    }
  }
}
