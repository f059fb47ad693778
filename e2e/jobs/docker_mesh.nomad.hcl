# Docker jobs in Consul's service mesh, with the sidecars and the gateway that Nomad adds: they have the driver docker,
# and their image is that of the node.
variable "image" { type = string }

job "docker_mesh" {
  group "api" {
    network {
      mode = "bridge"
    }

    restart {
      attempts = 0
      mode     = "fail"
    }

    service {
      name     = "docker-api"
      port     = "8080"
      provider = "consul"

      connect {
        sidecar_service {}
      }
    }

    # Only tasks of its own group can reach it.
    task "api" {
      driver      = "docker"
      kill_signal = "SIGKILL"

      config {
        image   = var.image
        command = "httpd"
        args    = ["-f", "-p", "127.0.0.1:8080", "-h", "/www"]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }

  group "web" {
    network {
      mode = "bridge"
    }

    restart {
      attempts = 0
      mode     = "fail"
    }

    service {
      name     = "docker-web"
      port     = "9002"
      provider = "consul"

      connect {
        sidecar_service {
          proxy {
            upstreams {
              destination_name = "docker-api"
              local_bind_port  = 9191
            }
          }
        }
      }
    }

    task "web" {
      driver      = "docker"
      kill_signal = "SIGKILL"

      config {
        image   = var.image
        command = "sleep"
        args    = ["1000000"]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }

  group "gateway" {
    network {
      mode = "bridge"
      port "in" { to = 8085 }
    }

    restart {
      attempts = 0
      mode     = "fail"
    }

    service {
      name     = "docker-gateway"
      port     = "8085"
      provider = "consul"

      connect {
        gateway {
          proxy {}

          ingress {
            listener {
              port     = 8085
              protocol = "tcp"

              service {
                name = "docker-api"
              }
            }
          }
        }
      }
    }
  }
}
