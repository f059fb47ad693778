# A CSI plugin (conformance/csiplugin) as a task of this driver: controller and node service in one. It mounts volumes,
# so it is privileged.
variable "image" { type = string }

job "csi_plugin" {
  group "csi_plugin" {
    task "plugin" {
      driver = "oci-rs"

      csi_plugin {
        id             = "directories"
        type           = "monolith"
        mount_dir      = "/csi"
        health_timeout = "30s"
      }

      config {
        image      = var.image
        privileged = true
      }

      resources {
        cpu    = 50
        memory = 64
      }
    }
  }
}
