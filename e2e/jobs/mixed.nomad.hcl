# Tasks of raw_exec and of this driver share a network and the allocation's directory. The job runs only on nodes with a
# version of the driver.
variable "image" { type = string }

variable "version" {
  type    = string
  default = ">= 0.1.0"
}

job "mixed" {
  type = "batch"

  constraint {
    attribute = "${attr.driver.oci-rs.version}"
    operator  = "semver"
    value     = var.version
  }

  constraint {
    attribute = "${attr.driver.oci-rs}"
    value     = "1"
  }

  group "mixed" {
    network {
      mode = "bridge"
    }

    restart {
      attempts = 0
      mode     = "fail"
    }

    reschedule {
      attempts  = 0
      unlimited = false
    }

    # On the node, before the others.
    task "prepare" {
      driver = "raw_exec"

      lifecycle {
        hook = "prestart"
      }

      config {
        command = "busybox"
        args    = ["sh", "-c", "echo from the node >$NOMAD_ALLOC_DIR/data/page"]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }

    task "serve" {
      driver      = "oci-rs"
      kill_signal = "SIGKILL"

      lifecycle {
        hook    = "prestart"
        sidecar = true
      }

      config {
        image   = var.image
        command = "httpd"
        args    = ["-f", "-p", "127.0.0.1:8080", "-h", "/alloc/data"]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }

    # On the node, in the group's network namespace.
    task "fetch" {
      driver = "raw_exec"

      config {
        command = "busybox"
        args = ["sh", "-c", <<-SCRIPT
          until busybox wget -q -O $NOMAD_TASK_DIR/page http://127.0.0.1:8080/page; do busybox sleep 0.1; done
          busybox cat $NOMAD_TASK_DIR/page
        SCRIPT
        ]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }

    task "read" {
      driver = "oci-rs"

      config {
        image   = var.image
        command = "/bin/sh"
        args    = ["-c", "cat /alloc/data/page; ip -o link show | cut -d: -f2 | cut -d@ -f1 | tr -d '\\n'"]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
