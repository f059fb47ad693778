# Docker services of all kinds that run while the driver of the node changes. Each writes its starts and ends to a file,
# and those with a port serve the id of their allocation.
variable "image" { type = string }
# Allocations of the groups that have more than one.
variable "count" { type = number }
variable "port" { type = number }

locals {
  # As first process of its container, a shell hears only signals that it traps.
  serve = <<-SCRIPT
    trap 'echo stopped >>/alloc/data/starts; exit 0' TERM
    echo started >>/alloc/data/starts
    if [ -n "$NOMAD_PORT_http" ]; then
      mkdir -p /tmp/www && echo $NOMAD_ALLOC_ID >/tmp/www/index.html
      httpd -p $NOMAD_PORT_http -h /tmp/www
    fi
    if [ -d /named ]; then echo "$NOMAD_ALLOC_ID" >>/named/starts; fi
    while :; do sleep 0.1; done
  SCRIPT
}

job "docker_switch" {
  group "web" {
    network {
      mode     = "bridge"
      hostname = "web.example"
      port "http" { to = 8080 }
    }

    task "web" {
      driver = "docker"

      config {
        image   = var.image
        command = "/bin/sh"
        args    = ["-c", local.serve]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }

  group "static" {
    network {
      mode = "bridge"

      port "http" {
        static = var.port
        to     = 8080
      }
    }

    task "static" {
      driver = "docker"

      config {
        image   = var.image
        command = "/bin/sh"
        args    = ["-c", local.serve]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }

  group "mapped" {
    count = var.count

    network {
      port "http" { to = 8080 }
    }

    task "mapped" {
      driver = "docker"

      config {
        image   = var.image
        command = "/bin/sh"
        args    = ["-c", local.serve]
        ports   = ["http"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }

  group "host" {
    network {
      port "http" {}
    }

    task "host" {
      driver = "docker"

      config {
        image        = var.image
        command      = "/bin/sh"
        args         = ["-c", local.serve]
        network_mode = "host"
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }

  group "volume" {
    count = var.count

    task "volume" {
      driver = "docker"

      config {
        image   = var.image
        command = "/bin/sh"
        args    = ["-c", local.serve]

        mount {
          type   = "volume"
          source = "switch-data"
          target = "/named"
        }
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }

  group "template" {
    task "template" {
      driver = "docker"

      template {
        data        = "GREETING=hello of {{ env \"NOMAD_ALLOC_ID\" }}"
        destination = "local/greeting.env"
        env         = true
      }

      config {
        image   = var.image
        command = "/bin/sh"
        args    = ["-c", "echo \"$GREETING\" >/alloc/data/greeting; ${local.serve}"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }

  group "lifecycle" {
    task "before" {
      driver = "docker"

      lifecycle {
        hook = "prestart"
      }

      config {
        image   = var.image
        command = "/bin/sh"
        args    = ["-c", "echo before >>/alloc/data/before"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }

    task "sidecar" {
      driver = "docker"

      lifecycle {
        hook    = "prestart"
        sidecar = true
      }

      config {
        image   = var.image
        command = "/bin/sh"
        args    = ["-c", "echo sidecar >>/alloc/data/sidecar; trap 'exit 0' TERM; while :; do sleep 0.1; done"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }

    task "main" {
      driver = "docker"

      config {
        image   = var.image
        command = "/bin/sh"
        args    = ["-c", local.serve]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
