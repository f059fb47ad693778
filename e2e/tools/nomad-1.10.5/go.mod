// Nomad 1.10.5, built by: go build github.com/hashicorp/nomad in this directory.
module nomad

go 1.24.7

replace (
	github.com/Microsoft/go-winio => github.com/endocrimes/go-winio v0.4.13-0.20190628114223-fb47a8b41948
	github.com/hashicorp/hcl => github.com/hashicorp/hcl v1.0.1-nomad-1
	github.com/hashicorp/nomad/api => github.com/hashicorp/nomad/api v0.0.0-20250909143645-a3b86c697f38
)

require github.com/hashicorp/nomad v1.10.5
