# What Nomad 1.11 has and 1.10 lacks: a secret of a variable, an identity in a chosen file, a description of the job.
variable "image" { type = string }

job "corpus_newer" {
  type = "batch"

  ui {
    description = "a job"

    link {
      label = "Nomad"
      url   = "https://developer.hashicorp.com/nomad"
    }
  }

  group "newer" {
    restart {
      attempts = 0
      mode     = "fail"
    }

    reschedule {
      attempts  = 0
      unlimited = false
    }

    # A dynamic host volume that stays with the allocation.
    volume "data" {
      type            = "host"
      source          = "sticky"
      sticky          = true
      access_mode     = "single-node-single-writer"
      attachment_mode = "file-system"
    }

    task "newer" {
      driver = "docker"

      volume_mount {
        volume      = "data"
        destination = "/data"
      }

      identity {
        file     = true
        filepath = "local/nomad_token"
      }

      secret "word" {
        provider = "nomad"
        path     = "nomad/jobs/corpus_newer"

        config {
          namespace = "default"
        }
      }

      env {
        WORD = "${secret.word.word}"
      }

      config {
        image   = var.image
        command = "/bin/sh"
        args    = ["-c", "[ \"$WORD\" = secret ] && [ $(tr -cd . </local/nomad_token | wc -c) = 2 ] && echo kept >/data/file"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
