# A sysbatch job that is dispatched with metadata.
variable "image" { type = string }

job "corpus_sysbatch" {
  type = "sysbatch"

  parameterized {
    payload       = "forbidden"
    meta_required = ["KEY"]
    meta_optional = ["i"]
  }

  group "sysbatch" {
    task "sysbatch" {
      driver = "docker"

      config {
        image   = var.image
        command = "/bin/sh"
        args    = ["-c", "[ \"${NOMAD_META_KEY}\" = value ]"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
