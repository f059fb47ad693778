# Two docker groups that run while the driver of the node changes: one with a network of its own, one without.
variable "image" { type = string }

job "docker_switch" {
  group "web" {
    network {
      mode = "bridge"
      port "http" { to = 8080 }
    }

    task "web" {
      driver = "docker"
      # As first process of its container httpd hears nothing else.
      kill_signal = "SIGKILL"

      config {
        image   = var.image
        command = "/bin/sh"
        args = ["-c", <<-SCRIPT
          echo started >>/alloc/data/starts
          mkdir -p /tmp/www && echo $NOMAD_ALLOC_ID >/tmp/www/index.html
          exec httpd -f -p 8080 -h /tmp/www
        SCRIPT
        ]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }

  group "plain" {
    task "plain" {
      driver = "docker"

      config {
        image   = var.image
        command = "/bin/sh"
        args = ["-c", <<-SCRIPT
          trap 'echo stopped >>/alloc/data/starts; exit 0' TERM
          echo started >>/alloc/data/starts
          while :; do sleep 0.1; done
        SCRIPT
        ]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
