# A service with script checks of every kind, and a template that runs a script at a change, with Consul.
variable "image" { type = string }
variable "service" { type = string }

job "checks" {
  group "checks" {
    restart {
      attempts = 0
      mode     = "fail"
    }

    task "checks" {
      driver       = "oci-rs"
      user         = "app"
      kill_timeout = "1s"

      config {
        image    = var.image
        command  = "/bin/sh"
        args     = ["-c", "trap 'exit 0' TERM INT; while :; do sleep 1; done"]
        work_dir = "/home/app"
      }

      env {
        GREETING = "hello from the job"
      }

      template {
        data        = "{{ key \"${var.service}/word\" }}"
        destination = "local/word"
        change_mode = "script"

        change_script {
          command       = "/bin/sh"
          args          = ["-c", "word=$(cat /local/word); echo $word $(id -un) $GREETING $(pwd) >>/alloc/data/words; [ $word != bad ]"]
          timeout       = "5s"
          fail_on_error = true
        }
      }

      service {
        name     = var.service
        provider = "consul"

        check {
          name     = "passing"
          type     = "script"
          command  = "/bin/sh"
          args     = ["-c", "echo well: $(id -un), $GREETING, $(pwd); echo as usual >&2"]
          interval = "1s"
          timeout  = "10s"
        }

        check {
          name     = "warning"
          type     = "script"
          command  = "/bin/sh"
          args     = ["-c", "echo so so; exit 1"]
          interval = "1s"
          timeout  = "10s"
        }

        check {
          name     = "critical"
          type     = "script"
          command  = "/bin/sh"
          args     = ["-c", "echo bad; exit 7"]
          interval = "1s"
          timeout  = "10s"
        }

        check {
          name     = "missing"
          type     = "script"
          command  = "/no/such/check"
          interval = "1s"
          timeout  = "10s"
        }

        check {
          name     = "slow"
          type     = "script"
          command  = "/bin/sh"
          args     = ["-c", "echo begun; sleep 3331 & setsid sleep 3332 & (setsid sleep 3333 &); sleep 3334"]
          interval = "3s"
          timeout  = "1s"
        }

        # Passes when the file exists.
        check {
          name     = "changing"
          type     = "script"
          command  = "test"
          args     = ["-e", "/alloc/data/fine"]
          interval = "1s"
          timeout  = "10s"
        }
      }

      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}
