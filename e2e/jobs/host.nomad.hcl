# A web server on the node's own network, at a port that the job chooses.
variable "image" { type = string }
variable "port" { type = number }

# Labels of ports on the node's IPv6 address.
variable "six" {
  type    = list(string)
  default = []
}

job "host" {
  group "host" {
    network {
      mode = "host"

      port "http" { static = var.port }

      dynamic "port" {
        for_each = var.six
        labels   = [port.value]

        content {
          host_network = "six"
        }
      }
    }

    task "host" {
      driver = "oci-rs"

      config {
        image        = var.image
        network_mode = "host"
        # @config@
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
