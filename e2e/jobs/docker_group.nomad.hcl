# A docker job: a group with a host name of its own, which only a driver that makes the group's network can give it.
variable "image" { type = string }

job "docker_group" {
  group "group" {
    network {
      mode     = "bridge"
      hostname = "shop.example"
      port "http" { to = 80 }
    }

    restart {
      attempts = 0
      mode     = "fail"
    }

    task "before" {
      driver = "docker"

      lifecycle {
        hook = "prestart"
      }

      config {
        image   = var.image
        command = "/bin/sh"
        args    = ["-c", "hostname >/alloc/data/name; readlink /proc/self/ns/net >/alloc/data/before"]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }

    task "web" {
      driver = "docker"
      # As first process of its container httpd hears nothing else.
      kill_signal = "SIGKILL"

      config {
        image        = var.image
        command      = "/bin/sh"
        args         = ["-c", "readlink /proc/self/ns/net >/alloc/data/web; exec httpd -f -p 80 -h /www"]
        ports        = ["http"]
        security_opt = ["seccomp=unconfined"]
        logging {
          type = "json-file"
          config {
            max-size = "2m"
          }
        }
      }

      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}
