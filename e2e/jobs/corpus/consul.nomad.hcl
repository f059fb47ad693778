# Services in Consul with checks of all kinds, and connections of the service mesh as published jobs have them.
variable "image" { type = string }
variable "envoy" { type = string }

job "corpus_consul" {
  update {
    min_healthy_time = "100ms"
  }

  group "checks" {
    network {
      mode = "bridge"
      port "db" { to = 8080 }
    }

    service {
      name      = "corpus-task"
      port      = "db"
      task      = "web"
      tags      = ["foo", "bar"]
      on_update = "ignore"

      check {
        name      = "errs"
        type      = "script"
        task      = "web"
        command   = "/bin/sh"
        args      = ["-c", "echo 'this check errors'; exit 2"]
        interval  = "1s"
        timeout   = "10s"
        on_update = "ignore"
      }

      check {
        name           = "warns"
        type           = "script"
        task           = "web"
        command        = "/bin/sh"
        args           = ["-c", "echo 'this check warns'; exit 1"]
        interval       = "1s"
        timeout        = "10s"
        initial_status = "warning"
        on_update      = "ignore_warnings"

        check_restart {
          limit           = 1000
          ignore_warnings = true
        }
      }
    }

    task "web" {
      driver = "docker"

      config {
        image = var.image
      }

      service {
        name        = "corpus-canary"
        port        = "db"
        tags        = ["default"]
        canary_tags = ["foo", "canary"]

        check {
          type     = "tcp"
          port     = "db"
          interval = "1s"
          timeout  = "2s"

          check_restart {
            limit = 10
            grace = "30s"
          }
        }
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }

  # On docker's own network, at the container's address.
  group "driver" {
    task "web" {
      driver = "docker"

      config {
        image        = var.image
        network_mode = "bridge"
      }

      service {
        name         = "corpus-driver"
        port         = "8080"
        address_mode = "driver"
        tags         = ["http"]

        check_restart {
          limit = 30
          grace = "30s"
        }

        check {
          name         = "driver"
          type         = "http"
          path         = "/index.html"
          port         = "8080"
          address_mode = "driver"
          interval     = "1s"
          timeout      = "1s"
        }
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }

  # The service speaks to Consul itself.
  group "native" {
    network {
      port "api" {}
    }

    service {
      name = "corpus-native"
      port = "${NOMAD_PORT_api}"
      task = "native"

      connect {
        native = true
      }
    }

    task "native" {
      driver = "docker"

      config {
        image        = var.image
        network_mode = "host"
        command      = "/bin/sh"
        args         = ["-c", "exec httpd -f -p $NOMAD_PORT_api -h /www"]
      }

      kill_signal = "SIGKILL"

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }

  # The path of a check is exposed past the proxy: once by the check, once by the proxy's own list.
  group "api" {
    network {
      mode = "bridge"
      port "api_expose_healthcheck" { to = -1 }
    }

    service {
      name = "corpus-api"
      port = "8080"

      check {
        name     = "api-health"
        type     = "http"
        port     = "api_expose_healthcheck"
        path     = "/index.html"
        interval = "1s"
        timeout  = "3s"
      }

      connect {
        sidecar_service {
          proxy {
            expose {
              path {
                path            = "/index.html"
                protocol        = "http"
                local_path_port = 8080
                listener_port   = "api_expose_healthcheck"
              }
            }
          }
        }

        sidecar_task {
          driver = "docker"
          user   = "101"

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
            cpu    = 133
            memory = 63
          }
        }
      }
    }

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

  group "dashboard" {
    network {
      mode = "bridge"
      port "http" { to = 9002 }
    }

    service {
      name = "corpus-dashboard"
      port = "9002"

      check {
        type     = "http"
        path     = "/"
        expose   = true
        interval = "1s"
        timeout  = "2s"
      }

      connect {
        sidecar_service {
          proxy {
            upstreams {
              destination_name   = "corpus-api"
              local_bind_port    = 8080
              local_bind_address = "127.0.0.1"
              datacenter         = "dc1"

              config {
                connect_timeout_ms = 9999
              }

              mesh_gateway {
                mode = "local"
              }
            }
          }
        }
      }
    }

    task "dashboard" {
      driver      = "docker"
      kill_signal = "SIGKILL"

      env {
        COUNTING_SERVICE_URL = "http://${NOMAD_UPSTREAM_ADDR_corpus_api}"
      }

      config {
        image          = var.image
        command        = "httpd"
        args           = ["-f", "-p", "9002", "-h", "/www"]
        auth_soft_fail = true
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
