# A published port without a group network, as in a job of the docker driver: the task gets its own network on the
# driver's bridge, and `ports` publishes a port of the node.
#
#   nomad job run examples/ports.nomad.hcl
#   nomad service info ports                  # address and port on the node
#   curl http://ADDRESS:PORT/

variable "image" {
  description = "An image that contains busybox with httpd"
  type        = string
  default     = "busybox:1.36"
}

job "ports" {
  group "ports" {
    # No `mode`: Nomad only reserves a port of the node.
    network {
      port "http" {
        to = 8080
      }
    }

    task "server" {
      driver = "oci-rs"

      config {
        image        = var.image
        command      = "/bin/sh"
        args         = ["-c", "mkdir -p /tmp/www && hostname >/tmp/www/index.html && exec httpd -f -p 8080 -h /tmp/www"]
        init         = true
        hostname     = "ports-example"
        network_mode = "bridge" # the default, unless the plugin block sets another default_mode
        ports        = ["http"]
      }

      # The address of the node, for clients outside the node.
      service {
        name     = "ports"
        port     = "http"
        provider = "nomad"
      }

      # The address of the container, for other tasks on this node's bridge.
      service {
        name         = "ports-internal"
        port         = "http"
        provider     = "nomad"
        address_mode = "driver"
      }

      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}
