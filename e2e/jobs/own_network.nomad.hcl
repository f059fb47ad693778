# The most common job of the docker driver: no group network, and a published port of the container.
variable "image" { type = string }

variable "mode" {
  type    = string
  default = "bridge"
}

variable "service" {
  type    = string
  default = "own"
}

variable "count" {
  type    = number
  default = 1
}

# Labels of ports that are published on the node's IPv6 address.
variable "six" {
  type    = list(string)
  default = []
}

job "own_network" {
  group "own_network" {
    count = var.count

    network {
      port "http" { to = 8080 }
      port "ask" { to = 7007 }

      dynamic "port" {
        for_each = var.six
        labels   = [port.value]

        content {
          to           = 8080
          host_network = "six"
        }
      }
    }

    restart {
      attempts = 0
      mode     = "fail"
    }

    task "own_network" {
      driver = "oci-rs"

      config {
        image        = var.image
        network_mode = var.mode
        ports        = concat(["http", "ask"], var.six)
        hostname     = "own-1"
        # @config@
      }

      service {
        name         = "${var.service}-in"
        provider     = "nomad"
        port         = "http"
        address_mode = "driver"
      }

      service {
        name     = "${var.service}-out"
        provider = "nomad"
        port     = "http"
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
