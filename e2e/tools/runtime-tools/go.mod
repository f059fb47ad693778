// The validation programs of the OCI runtime specification, built by scripts/oci-conformance.sh.
module runtime-tools

go 1.21

require (
	github.com/blang/semver v3.5.1+incompatible
	github.com/hashicorp/go-multierror v1.0.0
	github.com/mndrix/tap-go v0.0.0-20171203230836-629fa407e90b
	github.com/mrunalp/fileutils v0.5.1
	github.com/opencontainers/runtime-spec v1.0.2
	github.com/opencontainers/runtime-tools v0.9.0
	github.com/opencontainers/selinux v1.6.0
	github.com/satori/go.uuid v1.2.0
	github.com/sirupsen/logrus v1.9.3
	github.com/syndtr/gocapability v0.0.0-20200815063812-42c35b437635
	github.com/xeipuuv/gojsonschema v1.2.0
)

require github.com/urfave/cli v1.22.17 // indirect
