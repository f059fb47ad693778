# What published batch jobs use of Nomad beside the driver's options: templates, artifacts, identities, users, hooks.
variable "image" { type = string }

# Where a server has the file `word`, and the same in `word.tar.gz`.
variable "server" { type = string }

job "corpus_features" {
  type     = "batch"
  priority = 40

  constraint {
    attribute = "${attr.kernel.name}"
    operator  = "set_contains_any"
    value     = "darwin,linux"
  }

  meta {
    directory = "local/foo/source"
  }

  group "features" {
    meta {
      color = "red"
    }

    constraint {
      distinct_hosts = true
    }

    constraint {
      attribute = "${attr.kernel.name}"
      value     = "linux"
    }

    ephemeral_disk {
      migrate = true
      size    = 101
    }

    restart {
      attempts = 1
      interval = "5m"
      delay    = "1s"
      mode     = "fail"
    }

    reschedule {
      attempts       = 1
      interval       = "24h"
      delay          = "5s"
      delay_function = "constant"
      unlimited      = false
    }

    task "before" {
      driver = "docker"

      lifecycle {
        hook = "prestart"
      }

      config {
        image   = var.image
        command = "/bin/sh"
        args    = ["-c", "echo before >${NOMAD_ALLOC_DIR}/data/hooks"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }

    task "artifacts" {
      driver = "docker"
      user   = "1000:1000"

      artifact {
        source = "${var.server}/word"
      }

      artifact {
        source      = "${var.server}/word"
        destination = "local/my/path"
      }

      artifact {
        source      = "${var.server}/word"
        destination = "${NOMAD_ALLOC_DIR}/word"
        mode        = "file"
      }

      artifact {
        source      = "${var.server}/word.tar.gz"
        destination = "local/my/archive"
      }

      artifact {
        source      = "${var.server}/word"
        destination = "${NOMAD_META_directory}"
      }

      template {
        source          = "${NOMAD_META_directory}/word"
        destination     = "${NOMAD_SECRETS_DIR}/foo/word"
        left_delimiter  = "[["
        right_delimiter = "]]"
      }

      template {
        destination = "${NOMAD_ALLOC_DIR}/shared.txt"
        data        = "shared\n"
        perms       = "777"
      }

      template {
        destination = "local/script.sh"
        data        = "echo \"$FROM_TEMPLATE\""
        perms       = "0755"
        change_mode = "noop"
      }

      template {
        destination = "secrets/environment"
        data        = "FROM_TEMPLATE={{ env \"NOMAD_META_color\" }}"
        env         = true
      }

      config {
        image   = var.image
        command = "/bin/sh"
        args = ["-c", <<-SCRIPT
          set -e
          id | grep -q 'uid=1000(app) gid=1000'
          for file in local/word local/my/path/word $NOMAD_ALLOC_DIR/word local/my/archive/word secrets/foo/word; do
            [ "$(cat /$file)" = word ] || { echo "$file"; exit 1; }
          done
          [ "$(cat $NOMAD_ALLOC_DIR/shared.txt)" = shared ]
          [ "$(stat -c %a $NOMAD_ALLOC_DIR/shared.txt)" = 777 ]
          [ "$(/bin/sh /local/script.sh)" = red ]
          [ "$(cat $NOMAD_ALLOC_DIR/data/hooks)" = before ]
        SCRIPT
        ]
      }

      env {
        EMPTY = ""
      }

      restart {
        attempts = 1
        delay    = "5s"
        mode     = "fail"
      }

      resources {
        cpu    = 50
        memory = 32
        disk   = 64
      }
    }

    task "identity" {
      driver = "docker"
      user   = "nobody"

      identity {
        env  = true
        file = true
      }

      identity {
        name          = "aws"
        aud           = ["aws"]
        file          = true
        ttl           = "1h"
        change_mode   = "signal"
        change_signal = "SIGHUP"
      }

      identity {
        name        = "quiet"
        aud         = ["quiet.example"]
        file        = true
        ttl         = "2h"
        change_mode = "noop"
      }

      config {
        image   = var.image
        command = "/bin/sh"
        args    = ["-c", "[ \"$(cat /secrets/nomad_token)\" = \"$NOMAD_TOKEN\" ] && [ -s /secrets/nomad_aws.jwt ] && [ -S /secrets/api.sock ]"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }

    task "after" {
      driver = "docker"

      lifecycle {
        hook = "poststop"
      }

      config {
        image   = var.image
        command = "/bin/sh"
        args    = ["-c", "echo after >>/alloc/data/hooks"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
