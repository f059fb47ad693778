# Two groups of Consul's service mesh: what `web` asks on its own loopback reaches `api` through an Envoy on either
# side.
variable "image" { type = string }
variable "envoy" { type = string }

job "mesh" {
  group "api" {
    network {
      mode = "bridge"
    }

    restart {
      attempts = 0
      mode     = "fail"
    }

    service {
      name     = "mesh-api"
      port     = "8080"
      provider = "consul"

      connect {
        sidecar_service {}

        sidecar_task {
          driver         = "oci-rs"
          user           = "101"
          shutdown_delay = "0s"

          config {
            image = var.envoy
            args = [
              "-c", "${NOMAD_SECRETS_DIR}/envoy_bootstrap.json",
              "-l", "${meta.connect.log_level}",
              "--concurrency", "${meta.connect.proxy_concurrency}",
              "--disable-hot-restart",
            ]
          }

          resources {
            cpu    = 100
            memory = 128
          }
        }
      }
    }

    # Only tasks of its own group can reach it.
    task "api" {
      driver      = "oci-rs"
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
      name     = "mesh-web"
      port     = "9002"
      provider = "consul"

      connect {
        sidecar_service {
          proxy {
            upstreams {
              destination_name = "mesh-api"
              local_bind_port  = 9191
            }
          }
        }

        sidecar_task {
          driver         = "oci-rs"
          user           = "101"
          shutdown_delay = "0s"

          config {
            image = var.envoy
            args = [
              "-c", "${NOMAD_SECRETS_DIR}/envoy_bootstrap.json",
              "-l", "${meta.connect.log_level}",
              "--concurrency", "${meta.connect.proxy_concurrency}",
              "--disable-hot-restart",
            ]
          }

          resources {
            cpu    = 100
            memory = 128
          }
        }
      }
    }

    task "web" {
      driver      = "oci-rs"
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
}
