# Docker jobs in Consul's service mesh whose traffic goes through their proxies without upstreams: transparent_proxy.
# Each listens on loopback only, so that only its proxy reaches it.
variable "image" { type = string }

job "docker_transparent" {
  dynamic "group" {
    for_each = { "api" = "8080", "web" = "9002" }
    labels   = [group.key]

    content {
      network {
        mode = "bridge"
      }

      restart {
        attempts = 0
        mode     = "fail"
      }

      service {
        name     = "transparent-${group.key}"
        port     = group.value
        provider = "consul"

        connect {
          sidecar_service {
            proxy {
              transparent_proxy {
                no_dns = true
              }
            }
          }
        }
      }

      task "serve" {
        driver      = "docker"
        kill_signal = "SIGKILL"

        config {
          image   = var.image
          command = "httpd"
          args    = ["-f", "-p", "127.0.0.1:${group.value}", "-h", "/www"]
        }

        resources {
          cpu    = 50
          memory = 32
        }
      }
    }
  }
}
