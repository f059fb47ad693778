# Services as the published ones: the deployment is healthy when all checks pass.
variable "image" { type = string }

# Ports that are free on the node.
variable "port" { type = number }
variable "other_port" { type = number }

job "corpus_services" {
  type        = "service"
  datacenters = ["*"]

  affinity {
    attribute = "${node.datacenter}"
    value     = "dc2"
    weight    = 100
  }

  constraint {
    attribute = "${attr.kernel.name}"
    value     = "linux"
  }

  constraint {
    attribute = "${attr.driver.docker.version}"
    operator  = "is_set"
  }

  spread {
    attribute = "${node.datacenter}"
    weight    = 100

    target "dc1" {
      percent = 70
    }
  }

  migrate {
    max_parallel     = 2
    health_check     = "checks"
    min_healthy_time = "10s"
    healthy_deadline = "5m"
  }

  reschedule {
    delay          = "5s"
    delay_function = "constant"
    unlimited      = true
  }

  update {
    max_parallel      = 2
    min_healthy_time  = "100ms"
    canary            = 1
    auto_promote      = true
    auto_revert       = true
    healthy_deadline  = "2m"
    progress_deadline = "3m"
    stagger           = "5s"
  }

  # As `nomad job init` writes it: a port of the container, published by docker's own network.
  group "cache" {
    count = 2

    max_client_disconnect = "1h"

    network {
      port "db" { to = 8080 }
    }

    restart {
      attempts = 2
      interval = "1m"
      delay    = "2s"
      mode     = "delay"
    }

    update {
      canary            = 1
      auto_promote      = true
      auto_revert       = true
      health_check      = "checks"
      max_parallel      = 1
      min_healthy_time  = "100ms"
      healthy_deadline  = "1m"
      progress_deadline = "2m"
      stagger           = "30s"
    }

    scaling {
      enabled = true
      min     = 1
      max     = 4
    }

    service {
      name     = "corpus-cache"
      tags     = ["global", "cache"]
      port     = "db"
      provider = "nomad"

      check {
        name     = "alive"
        type     = "tcp"
        interval = "1s"
        timeout  = "2s"
      }

      check {
        name     = "page"
        type     = "http"
        path     = "/"
        port     = "db"
        interval = "1s"
        timeout  = "2s"

        check_restart {
          limit = 30
          grace = "30s"
        }
      }
    }

    task "redis" {
      driver       = "docker"
      kill_signal  = "SIGTERM"
      kill_timeout = "30s"

      config {
        image          = var.image
        ports          = ["db"]
        auth_soft_fail = true
      }

      identity {
        env  = true
        file = true
      }

      action "list" {
        command = "/bin/sh"
        args    = ["-c", "ls /www"]
      }

      scaling "cpu" {
        enabled = true
        min     = 10
        max     = 500
      }

      scaling "mem" {
        enabled = true
        min     = 16
        max     = 512
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }

  # A port of the node on the container's port.
  group "static" {
    network {
      port "http" {
        static = var.port
        to     = 8080
      }
    }

    service {
      name     = "corpus-static"
      port     = "http"
      provider = "nomad"
    }

    task "web" {
      driver = "docker"

      config {
        image        = var.image
        network_mode = "bridge"
        ports        = ["http"]
      }

      service {
        name         = "corpus-driver"
        port         = "8080"
        provider     = "nomad"
        address_mode = "driver"
        tags         = ["http"]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }

  # The old form: the ports are the task's, and the driver maps them.
  group "old" {
    task "web" {
      driver = "docker"

      config {
        image                  = var.image
        advertise_ipv6_address = true

        port_map {
          http = 8080
        }
      }

      service {
        name     = "corpus-old"
        port     = "http"
        provider = "nomad"
      }

      resources {
        cpu    = 50
        memory = 32

        network {
          mbits = 10
          port "http" {}
          port "admin" { static = var.other_port }
        }
      }
    }
  }

  # On the node's network.
  group "host" {
    network {
      mode = "host"
      port "http" {}
    }

    service {
      name     = "corpus-host"
      port     = "http"
      provider = "nomad"

      check {
        type     = "http"
        path     = "/"
        interval = "1s"
        timeout  = "1s"
      }
    }

    task "web" {
      driver = "docker"

      config {
        image        = var.image
        network_mode = "host"
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }

  # A group with a network of its own, a host name, and a helper beside the service.
  group "bridge" {
    network {
      mode     = "bridge"
      hostname = "corpus-${NOMAD_ALLOC_INDEX}"
      port "http" { to = 8080 }
      port "other" { to = -1 }
    }

    service {
      name     = "corpus-bridge"
      port     = "http"
      provider = "nomad"

      check {
        type     = "http"
        path     = "/"
        interval = "1s"
        timeout  = "1s"
      }
    }

    task "web" {
      driver = "docker"

      config {
        image           = var.image
        network_aliases = ["${NOMAD_TASK_NAME}", "${NOMAD_TASK_NAME}-${NOMAD_ALLOC_INDEX}"]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }

    task "helper" {
      driver = "docker"

      lifecycle {
        hook    = "poststart"
        sidecar = true
      }

      config {
        image   = var.image
        command = "/bin/sh"
        args    = ["-c", "trap 'exit 0' TERM; until wget -q -O /alloc/data/page http://web-0:8080/; do sleep 0.1; done; hostname >/alloc/data/name; while :; do sleep 0.1; done"]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }

  # A network of a CNI configuration, with arguments for its plugins.
  group "cni" {
    network {
      mode = "cni/e2e"
      port "http" { to = 8080 }

      cni {
        args = {
          message = "${node.pool}"
        }
      }
    }

    task "web" {
      driver = "docker"

      config {
        image = var.image
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
