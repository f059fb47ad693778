# Script checks: the Nomad client runs a command inside the task, and Consul shows the result. They need Consul.
#
#   nomad job run examples/checks.nomad.hcl
#   nomad alloc exec -job checks cat /tmp/ready      # any command in the running task
#   nomad alloc exec -job checks rm /tmp/ready       # makes the check "ready" fail

variable "image" {
  description = "An image that contains a shell"
  type        = string
  default     = "busybox:1.36"
}

variable "service" {
  description = "The name of the service in Consul"
  type        = string
  default     = "checks"
}

job "checks" {
  group "checks" {
    task "worker" {
      driver = "oci-rs"

      config {
        image   = var.image
        command = "/bin/sh"
        args    = ["-c", "date >/tmp/ready; exec sleep 1000000"]
        init    = true
      }

      service {
        name     = var.service
        provider = "consul"

        # Exit code 0 is passing, 1 is warning, every other code is critical. The output is visible in Consul.
        check {
          name     = "ready"
          type     = "script"
          command  = "/bin/sh"
          args     = ["-c", "test -e /tmp/ready && echo ready since $(cat /tmp/ready)"]
          interval = "2s"
          timeout  = "5s" # then the driver kills the command and its children
        }
      }

      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}
