# A group of several tasks in one network: each hook of a group's life is taken, and each task notes in the allocation's
# directory in which network namespace it is.
variable "image" { type = string }

variable "mode" {
  type    = string
  default = "bridge"
}

variable "count" {
  type    = number
  default = 1
}

# Labels of ports that are published on the node's IPv6 address.
variable "six" {
  type    = list(string)
  default = []
}

locals {
  note = "readlink /proc/self/ns/net >/alloc/data/$NOMAD_TASK_NAME"
}

job "group" {
  group "group" {
    count = var.count

    network {
      mode = var.mode

      port "http" { to = 8080 }
      port "ask" { to = 7007 }

      dynamic "port" {
        for_each = var.six
        labels   = [port.value]

        content {
          to           = 8080
          host_network = "six"
        }
      }

      dns {
        servers  = ["192.0.2.53"]
        searches = ["group.test"]
        options  = ["ndots:3"]
      }
    }

    restart {
      attempts = 0
      mode     = "fail"
    }

    task "before" {
      driver = "oci-rs"

      lifecycle {
        hook = "prestart"
      }

      config {
        image   = var.image
        command = "/bin/sh"
        args    = ["-c", local.note]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }

    # Serves its allocation's id on loopback, which only tasks of this group reach.
    task "beside" {
      driver = "oci-rs"
      # As first process of its container httpd hears nothing else.
      kill_signal = "SIGKILL"

      lifecycle {
        hook    = "prestart"
        sidecar = true
      }

      config {
        image   = var.image
        command = "/bin/sh"
        args    = ["-c", "${local.note}; mkdir /id && echo $NOMAD_ALLOC_ID >/id/index.html && exec httpd -f -p 127.0.0.1:9001 -h /id"]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }

    task "web" {
      driver = "oci-rs"

      config {
        image       = var.image
        command     = "/bin/sh"
        args        = ["-c", "${local.note}; exec serve"]
        hostname    = "web-1"
        extra_hosts = ["db:10.1.2.3", "six:[fd00::6]"]
        # @config@
      }

      resources {
        cpu    = 100
        memory = 64
      }
    }

    # Asks the others, who may not listen yet.
    task "after" {
      driver = "oci-rs"

      lifecycle {
        hook = "poststart"
      }

      config {
        image   = var.image
        command = "/bin/sh"
        args = ["-c", <<-SCRIPT
          ${local.note}
          ask() { until wget -q -O - "http://127.0.0.1:$1/"; do sleep 0.1; done; }
          (ask 8080; ask 9001) >/alloc/data/.answers && mv /alloc/data/.answers /alloc/data/answers
        SCRIPT
        ]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }

    task "last" {
      driver = "oci-rs"

      lifecycle {
        hook = "poststop"
      }

      config {
        image   = var.image
        command = "/bin/sh"
        args    = ["-c", local.note]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
