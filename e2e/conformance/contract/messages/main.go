//go:build contract

// messages prints the protobuf descriptors that the Nomad of this build is compiled with, as a FileDescriptorSet: the
// protocols of task drivers and device plugins, with what they use, and the services of go-plugin. It is built once for each version.
package main

import (
	"os"
	"slices"

	_ "github.com/hashicorp/go-plugin"
	_ "github.com/hashicorp/nomad/plugins/base/proto"
	_ "github.com/hashicorp/nomad/plugins/device/proto"
	_ "github.com/hashicorp/nomad/plugins/drivers/proto"
	_ "github.com/hashicorp/nomad/plugins/shared/hclspec"
	_ "github.com/hashicorp/nomad/plugins/shared/structs/proto"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

var packages = []protoreflect.FullName{
	"hashicorp.nomad.plugins.base.proto",
	"hashicorp.nomad.plugins.device",
	"hashicorp.nomad.plugins.drivers.proto",
	"hashicorp.nomad.plugins.shared.hclspec",
	"hashicorp.nomad.plugins.shared.structs",
	"plugin",
}

func main() {
	set := &descriptorpb.FileDescriptorSet{}
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		if slices.Contains(packages, file.Package()) {
			set.File = append(set.File, protodesc.ToFileDescriptorProto(file))
		}
		return true
	})
	bytes, err := proto.Marshal(set)
	if err != nil {
		panic(err)
	}
	if _, err := os.Stdout.Write(bytes); err != nil {
		panic(err)
	}
}
