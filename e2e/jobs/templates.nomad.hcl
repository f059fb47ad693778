# Templates with a Nomad variable. A change restarts a task, sends it a signal, or runs a script in it.
variable "image" { type = string }

locals {
  word = "{{ with nomadVar (print \"nomad/jobs/\" (env \"NOMAD_JOB_ID\")) }}{{ .word }}{{ end }}"
}

job "templates" {
  group "templates" {
    restart {
      attempts = 0
      mode     = "fail"
    }

    # Notes each start.
    task "restarted" {
      driver = "oci-rs"

      config {
        image   = var.image
        command = "/bin/sh"
        args    = ["-c", "cat /local/word >>/alloc/data/restarted; trap 'exit 0' TERM; while :; do sleep 0.1; done"]
      }

      template {
        data        = "${local.word}\n"
        destination = "local/word"
        change_mode = "restart"
        splay       = "0s"
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }

    # Notes each signal.
    task "signalled" {
      driver = "oci-rs"

      config {
        image   = var.image
        command = "/bin/sh"
        args = ["-c", <<-SCRIPT
          trap 'cat /local/word >>/alloc/data/signalled' USR1
          trap 'exit 0' TERM
          touch /alloc/data/listens
          while :; do sleep 0.1; done
        SCRIPT
        ]
      }

      template {
        data          = "${local.word}\n"
        destination   = "local/word"
        change_mode   = "signal"
        change_signal = "SIGUSR1"
        splay         = "0s"
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }

    # Runs a script. The same variable is also in the environment of a task that ignores changes.
    task "scripted" {
      driver = "oci-rs"
      user   = "app"

      config {
        image   = var.image
        command = "/bin/sh"
        args    = ["-c", "trap 'exit 0' TERM; while :; do sleep 0.1; done"]
      }

      template {
        data        = "${local.word}\n"
        destination = "local/word"
        change_mode = "script"
        splay       = "0s"

        change_script {
          command = "/bin/sh"
          args    = ["-c", "(cat /local/word; id -un; echo $WORD) | tr '\\n' ' ' >/local/.new && cat /local/.new >>/alloc/data/scripted"]
          timeout = "20s"
        }
      }

      template {
        data        = "WORD=${local.word}"
        destination = "secrets/environment"
        env         = true
        change_mode = "noop"
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
