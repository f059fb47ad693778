# Options of the docker driver that published jobs use. Each task checks the effect of its options and ends with 0.
variable "image" { type = string }

# Where a server has `image.tar`.
variable "server" { type = string }

# A directory of the node with the file `word`, which contains "host".
variable "directory" { type = string }

job "corpus_options" {
  type = "batch"

  group "options" {
    restart {
      attempts = 0
      mode     = "fail"
    }

    reschedule {
      attempts  = 0
      unlimited = false
    }

    task "mounts" {
      driver = "docker"

      template {
        data        = "local\n"
        destination = "local/word"
      }

      template {
        data        = "secret\n"
        destination = "${NOMAD_SECRETS_DIR}/word"
      }

      config {
        image   = var.image
        command = "/bin/sh"
        args = ["-c", <<-SCRIPT
          set -e
          for file in /a/word /b/word /c/word /old/local/word; do [ "$(cat $file)" = local ] || exit 1; done
          for file in /keys/word /old/keys/word; do [ "$(cat $file)" = secret ] || exit 2; done
          for file in /host/word /shared/word /old/host/word; do [ "$(cat $file)" = host ] || exit 3; done
          ! touch /b/word && ! touch /keys/new
          echo kept >/scratch/file; echo kept >/named/file; echo kept >/old/scratch/file
          [ "$(df -k /scratch | tail -1 | tr -s ' ' | cut -d ' ' -f 2)" = 980 ] || exit 4
        SCRIPT
        ]

        volumes = [
          "local/word:/a/word",
          "${var.directory}:/host",
        ]

        # As `./${NOMAD_TASK_DIR}/word` of a demo: the variable is `/local`.
        mount {
          type     = "bind"
          source   = "./${NOMAD_TASK_DIR}/word"
          target   = "/b/word"
          readonly = true
        }

        mount {
          type   = "bind"
          source = "local"
          target = "/c"
        }

        mount {
          type     = "bind"
          source   = "secrets"
          target   = "/keys"
          readonly = true
        }

        mount {
          type     = "bind"
          source   = var.directory
          target   = "/shared"
          readonly = false

          bind_options {
            propagation = "rshared"
          }
        }

        mount {
          type   = "tmpfs"
          target = "/scratch"

          tmpfs_options {
            size = 1000000
          }
        }

        mount {
          type     = "volume"
          source   = "corpus-volume"
          target   = "/named"
          readonly = false

          volume_options {
            no_copy = false
            labels {
              foo = "bar"
            }
          }
        }

        mounts = [
          {
            type     = "bind"
            source   = "local"
            target   = "/old/local"
            readonly = true
          },
          {
            type   = "bind"
            source = "secrets"
            target = "/old/keys"
          },
          {
            type     = "bind"
            source   = var.directory
            target   = "/old/host"
            readonly = false
            bind_options = {
              propagation = "rshared"
            }
          },
          {
            type     = "tmpfs"
            target   = "/old/scratch"
            readonly = false
            tmpfs_options = {
              size = 100000
            }
          },
          {
            type     = "volume"
            source   = "corpus-volume"
            target   = "/old/named"
            readonly = false
            volume_options = {
              no_copy = false
              labels  = [{ foo = "bar" }]
            }
          },
        ]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }

    task "limits" {
      driver = "docker"

      config {
        image      = var.image
        force_pull = true
        command    = "/bin/sh"
        args       = ["-c", "[ $(ulimit -u) = 4242 ] && [ $(ulimit -Hn) = 4096 ] && [ $(ulimit -n) = 2048 ] && grep -q 'shm.*size=8k' /proc/mounts"]
        shm_size   = 8192

        ulimit {
          nproc  = "4242"
          nofile = "2048:4096"
        }

        healthchecks {
          disable = true
        }

        logging {
          type = "json-file"
          config {
            max-file = "2"
            max-size = "2m"
          }
        }
      }

      resources {
        cpu        = 50
        memory     = 32
        memory_max = 64
      }
    }

    task "security" {
      driver = "docker"

      config {
        image        = var.image
        command      = "/bin/sh"
        args         = ["-c", "[ $(cat /proc/sys/net/core/somaxconn) = 16384 ] && grep -q '^NoNewPrivs.*1' /proc/self/status && ! mknod /tmp/null c 1 3"]
        network_mode = "bridge"
        cap_add      = ["net_raw", "sys_time"]
        cap_drop     = ["mknod"]
        security_opt = ["no-new-privileges"]
        runtime      = "runc"

        sysctl = {
          "net.core.somaxconn" = "16384"
        }
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }

    task "devices" {
      driver = "docker"

      config {
        image   = var.image
        command = "/bin/sh"
        args    = ["-c", "head -c 1 /dev/xvdc >/dev/null && echo x >/dev/xvdd"]

        devices = [
          {
            host_path          = "/dev/zero"
            container_path     = "/dev/xvdc"
            cgroup_permissions = "r"
          },
          {
            host_path      = "/dev/null"
            container_path = "/dev/xvdd"
          },
        ]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }

    # As storage plugins do.
    task "privileged" {
      driver = "docker"

      config {
        image         = var.image
        command       = "/bin/sh"
        args          = ["-c", "mkdir /m && mount -t tmpfs none /m && [ -e /host/word ] && [ -d /volume ] && [ -c /dev/null ]"]
        network_mode  = "host"
        ipc_mode      = "host"
        privileged    = true
        volume_driver = "local"
        volumes       = ["${var.directory}:/host", "corpus-volume:/volume"]

        devices = [
          {
            host_path      = "/dev"
            container_path = "/dev"
          },
        ]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }

    # The name has points, and the label leads to it.
    task "words" {
      driver = "docker"

      config {
        image          = var.image
        entrypoint     = ["/bin/sh", "-c"]
        args           = ["[ \"$0 $1 $2\" = \"${NOMAD_TASK_NAME} ${node.datacenter} ${MY_ENV}\" ] && [ \"${meta.foo}\" = bar ]", "${NOMAD_TASK_NAME}", "${node.datacenter}", "${MY_ENV}"]
        auth_soft_fail = true
        network_mode   = "none"

        auth {
          username = "user"
          password = "password"
        }

        labels = {
          foo                  = "bar"
          "quote.dotted.keys"  = "zap"
          from_the_environment = "${valid.name}"
        }
      }

      env = {
        MY_ENV       = "mine"
        "valid.name" = "value"
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }

    # The image is in an archive that the task downloads.
    task "archive" {
      driver = "docker"

      artifact {
        source      = "${var.server}/image.tar"
        destination = "local"

        options {
          archive = false
        }
      }

      config {
        load    = "image.tar"
        image   = "loaded:1"
        command = "/bin/sh"
        args    = ["-c", "grep -q Hello /www/index.html"]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
