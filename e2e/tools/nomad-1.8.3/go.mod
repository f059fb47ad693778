// Nomad 1.8.3, built by: go build github.com/hashicorp/nomad in this directory.
module nomad

go 1.22

replace (
	github.com/Microsoft/go-winio => github.com/endocrimes/go-winio v0.4.13-0.20190628114223-fb47a8b41948
	github.com/armon/go-metrics => github.com/armon/go-metrics v0.0.0-20230509193637-d9ca9af9f1f9
	github.com/hashicorp/hcl => github.com/hashicorp/hcl v1.0.1-0.20201016140508-a07e7d50bbee
	github.com/hashicorp/nomad/api => github.com/hashicorp/nomad/api v0.0.0-20240813123601-b34a6fe10b82
)

require github.com/hashicorp/nomad v1.8.3
