# A periodic job. The case forces a run.
variable "image" { type = string }

job "corpus_periodic" {
  type = "batch"

  periodic {
    cron             = "13 13 31 1 7"
    prohibit_overlap = true
  }

  group "periodic" {
    task "periodic" {
      driver = "docker"

      config {
        image   = var.image
        command = "/bin/sh"
        args    = ["-c", "sleep 0"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
