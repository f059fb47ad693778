# A system job: one allocation on each node, with a host volume and a port of the node.
variable "image" { type = string }
variable "port" { type = number }

job "corpus_system" {
  type     = "system"
  priority = 80

  update {
    max_parallel     = 1
    min_healthy_time = "100ms"
    auto_revert      = true
  }

  group "system" {
    network {
      port "www" { static = var.port }
    }

    restart {
      attempts = 10
      interval = "5m"
      delay    = "25s"
      mode     = "delay"
    }

    volume "shared" {
      type   = "host"
      source = "corpus"
    }

    volume "readable" {
      type      = "host"
      source    = "shared"
      read_only = true
    }

    service {
      name     = "corpus-system"
      port     = "www"
      provider = "nomad"
    }

    task "system" {
      driver = "docker"

      volume_mount {
        volume      = "shared"
        destination = "${NOMAD_TASK_DIR}/shared"
      }

      volume_mount {
        volume      = "readable"
        destination = "/srv/readable"
        read_only   = true
      }

      config {
        image        = var.image
        command      = "/bin/sh"
        network_mode = "host"
        args         = ["-c", "cp /local/shared/word /tmp/index.html && ! touch /srv/readable/new && exec httpd -f -p $NOMAD_PORT_www -h /tmp"]
      }

      kill_signal = "SIGKILL"

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
