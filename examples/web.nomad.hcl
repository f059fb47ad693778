# A web service in the group's own network. Port 8080 of the network is published on a free port of the node.
#
#   nomad job run examples/web.nomad.hcl
#   nomad service info web                    # address and port on the node
#   curl http://ADDRESS:PORT/
#   nomad alloc checks $(nomad job allocs -t '{{ (index . 0).ID }}' web)

variable "image" {
  description = "An image that contains busybox with httpd"
  type        = string
  default     = "busybox:1.36"
}

variable "message" {
  description = "The text of the page"
  type        = string
  default     = "Hello from oci-rs"
}

job "web" {
  group "web" {
    # All tasks of the group share this network namespace. Nomad makes it and publishes the port.
    network {
      mode = "bridge"

      port "http" {
        to = 8080
      }
    }

    # Nomad's own service discovery. The check decides when a deployment is healthy.
    service {
      name     = "web"
      port     = "http"
      provider = "nomad"

      check {
        type     = "http"
        path     = "/"
        interval = "5s"
        timeout  = "2s"
      }
    }

    update {
      min_healthy_time = "5s"
    }

    task "server" {
      driver = "oci-rs"

      config {
        image   = var.image
        command = "httpd"
        args    = ["-f", "-p", "8080", "-h", "/local/www"]

        # busybox httpd does not handle SIGTERM as process 1. This small init forwards the signal.
        init = true

        # The page comes from /local, so the image can be read-only.
        readonly_rootfs = true
      }

      # Nomad renders the page before the start, and again when a value in it changes. httpd reads the file for each
      # request, so a change needs no restart.
      template {
        data        = "<h1>${var.message}</h1>\n<p>allocation {{ env \"NOMAD_ALLOC_ID\" }}</p>\n"
        destination = "local/www/index.html"
        change_mode = "noop"
      }

      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}
