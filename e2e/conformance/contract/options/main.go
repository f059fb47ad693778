//go:build contract

// options prints the schemas of the docker driver that the Nomad of this build is compiled with, as JSON: the task
// block's and the plugin block's, each an encoded protobuf message. It is built once for each version.
package main

import (
	"context"
	"encoding/json"
	"os"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/drivers/docker"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
)

func main() {
	driver := docker.NewDockerDriver(context.Background(), hclog.NewNullLogger())
	schemas := map[string][]byte{
		"task":   encode(driver.TaskConfigSchema()),
		"plugin": encode(driver.(base.BasePlugin).ConfigSchema()),
	}
	if err := json.NewEncoder(os.Stdout).Encode(schemas); err != nil {
		panic(err)
	}
}

func encode(spec *hclspec.Spec, err error) []byte {
	if err != nil {
		panic(err)
	}
	// Older versions have generated code of the first Go interface for protobuf.
	bytes, err := proto.Marshal(protoadapt.MessageV2Of(spec))
	if err != nil {
		panic(err)
	}
	return bytes
}
