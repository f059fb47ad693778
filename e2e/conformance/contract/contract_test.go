// Package contract compares this driver with what Nomad itself is compiled with: the protobuf messages and services of
// its plugins, and the options of its docker driver. The driver's own tests encode and decode with the driver's files,
// so they cannot see a mistake in these files. scripts/conformance.sh runs it.
package contract

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/bufbuild/protocompile"
	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-version"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"github.com/shoenig/test/must"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

const (
	// tools has a module for each supported version of Nomad.
	tools = "../../tools"
	// protos has the driver's own .proto files.
	protos = "../../../proto/proto"
)

func TestMessagesAndServices(t *testing.T) {
	ours := flattenFiles(ownFiles(t))
	compare(t, versions(t), messageDifferences, func(t *testing.T, version string) (map[string]string, map[string]string) {
		set := &descriptorpb.FileDescriptorSet{}
		must.NoError(t, proto.Unmarshal(output(t, version, "messages"), set))
		// Files of other packages are not in the set.
		files, err := protodesc.FileOptions{AllowUnresolvable: true}.NewFiles(set)
		must.NoError(t, err)
		var theirs []protoreflect.FileDescriptor
		files.RangeFiles(func(file protoreflect.FileDescriptor) bool {
			theirs = append(theirs, file)
			return true
		})
		return ours, flattenFiles(theirs)
	})
}

// The docker driver of the versions between has the options of one of these: its source is the same.
func TestOptions(t *testing.T) {
	all := versions(t)
	ours := ownOptions(t)
	compare(t, []string{all[0], all[len(all)-1]}, optionDifferences,
		func(t *testing.T, version string) (map[string]string, map[string]string) {
			var schemas map[string][]byte
			must.NoError(t, json.Unmarshal(output(t, version, "options"), &schemas))
			theirs := map[string]string{}
			for block, bytes := range schemas {
				spec := &hclspec.Spec{}
				must.NoError(t, proto.Unmarshal(bytes, protoadapt.MessageV2Of(spec)))
				flattenSpec(block, spec, theirs)
			}
			must.MapContainsKey(t, theirs, "task.image")
			must.MapContainsKey(t, theirs, "plugin.allow_privileged")
			// Options that only this driver has are not compared.
			shared := maps.Clone(ours)
			maps.DeleteFunc(shared, func(option, _ string) bool { _, known := theirs[option]; return !known })
			return shared, theirs
		})
}

// difference is an entry of a list of known differences.
type difference struct {
	// entity is the compared thing, as flattenFiles and flattenSpec name it.
	entity string
	// last is the last version that differs. Empty: all versions differ.
	last   string
	reason string
}

func (d difference) covers(nomad string) bool {
	return d.last == "" || !version.Must(version.NewVersion(nomad)).GreaterThan(version.Must(version.NewVersion(d.last)))
}

// compare fails on each difference that is not in the list, and on each entry of the list that does not differ.
func compare(
	t *testing.T, versions []string, known []difference,
	sides func(t *testing.T, version string) (ours, theirs map[string]string),
) {
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			ours, theirs := sides(t, version)
			found := differences(ours, theirs)
			for _, entry := range known {
				if _, differs := found[entry.entity]; differs && entry.covers(version) {
					delete(found, entry.entity)
				} else if entry.covers(version) {
					t.Errorf("%s is in the list of differences, but it is the same in Nomad %s", entry.entity, version)
				}
			}
			for _, entity := range slices.Sorted(maps.Keys(found)) {
				t.Errorf("%s: %s in Nomad %s", entity, found[entity], version)
			}
		})
	}
}

// differences describes for each entity that is not equal what both sides have. If a side lacks a message, an enum, a
// service or a block, its members are not listed.
func differences(ours, theirs map[string]string) map[string]string {
	found := map[string]string{}
	for entity, value := range theirs {
		if own, known := ours[entity]; !known {
			found[entity] = fmt.Sprintf("the driver lacks it, it is %q", value)
		} else if own != value {
			found[entity] = fmt.Sprintf("the driver has %q, it is %q", own, value)
		}
	}
	for entity, value := range ours {
		if _, known := theirs[entity]; !known {
			found[entity] = fmt.Sprintf("the driver has %q, it is missing", value)
		}
	}
	// One side lacks the whole block, message or enum.
	alone := func(entity string) bool {
		_, own := ours[entity]
		_, known := theirs[entity]
		return own != known
	}
	maps.DeleteFunc(found, func(entity, _ string) bool {
		for at, character := range entity {
			if character == '.' && alone(entity[:at]) {
				return true
			}
		}
		return false
	})
	return found
}

// versions are the supported versions of Nomad, the oldest first.
func versions(t *testing.T) []string {
	directories, err := filepath.Glob(filepath.Join(tools, "nomad-*"))
	must.NoError(t, err)
	found := make([]*version.Version, 0, len(directories))
	for _, directory := range directories {
		found = append(found, version.Must(version.NewVersion(strings.TrimPrefix(filepath.Base(directory), "nomad-"))))
	}
	must.SliceNotEmpty(t, found)
	slices.SortFunc(found, (*version.Version).Compare)
	names := make([]string, 0, len(found))
	for _, version := range found {
		names = append(names, version.String())
	}
	return names
}

// output builds a program of this directory with a version of Nomad and returns what it prints.
func output(t *testing.T, version, program string) []byte {
	executable := filepath.Join(t.TempDir(), program)
	module := filepath.Join(tools, "nomad-"+version, "go.mod")
	// -trimpath, as in the build of Nomad, so that both share one build cache.
	build := exec.Command("go", "build", "-trimpath", "-tags", "contract", "-modfile", module, "-o", executable, "./"+program)
	log, err := build.CombinedOutput()
	must.NoError(t, err, must.Sprint(string(log)))
	bytes, err := exec.Command(executable).Output()
	must.NoError(t, err)
	return bytes
}

// --- messages and services ---

// ownFiles compiles the driver's .proto files.
func ownFiles(t *testing.T) []protoreflect.FileDescriptor {
	var names []string
	must.NoError(t, filepath.WalkDir(protos, func(path string, entry os.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".proto" {
			name, _ := filepath.Rel(protos, path)
			names = append(names, name)
		}
		return err
	}))
	must.SliceNotEmpty(t, names)
	compiler := protocompile.Compiler{
		Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{protos}}),
	}
	compiled, err := compiler.Compile(context.Background(), names...)
	must.NoError(t, err)
	files := make([]protoreflect.FileDescriptor, 0, len(compiled))
	for _, file := range compiled {
		files = append(files, file)
	}
	return files
}

// flattenFiles names each message, field, enum, enum value, service and method, with what matters on the wire.
func flattenFiles(files []protoreflect.FileDescriptor) map[string]string {
	flat := map[string]string{}
	for _, file := range files {
		flattenMessages(file.Messages(), flat)
		flattenEnums(file.Enums(), flat)
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			flat[string(service.FullName())] = "service"
			for j := range service.Methods().Len() {
				method := service.Methods().Get(j)
				flat[string(method.FullName())] = fmt.Sprintf("%s%s returns %s%s",
					stream(method.IsStreamingClient()), method.Input().FullName(),
					stream(method.IsStreamingServer()), method.Output().FullName())
			}
		}
	}
	return flat
}

func flattenMessages(messages protoreflect.MessageDescriptors, flat map[string]string) {
	for i := range messages.Len() {
		message := messages.Get(i)
		// A map's entry is part of the field's type.
		if message.IsMapEntry() {
			continue
		}
		flat[string(message.FullName())] = "message"
		for j := range message.Fields().Len() {
			field := message.Fields().Get(j)
			flat[string(field.FullName())] = fieldType(field)
		}
		flattenMessages(message.Messages(), flat)
		flattenEnums(message.Enums(), flat)
	}
}

func fieldType(field protoreflect.FieldDescriptor) string {
	value := func(field protoreflect.FieldDescriptor) string {
		switch {
		case field.Enum() != nil:
			return "enum " + string(field.Enum().FullName())
		case field.Message() != nil:
			return "message " + string(field.Message().FullName())
		}
		return field.Kind().String()
	}
	text := fmt.Sprintf("%d %s %s", field.Number(), field.Cardinality(), value(field))
	if field.IsMap() {
		text = fmt.Sprintf("%d map %s to %s", field.Number(), value(field.MapKey()), value(field.MapValue()))
	}
	if field.IsPacked() {
		text += " packed"
	}
	if field.ContainingOneof() != nil {
		text += " oneof " + string(field.ContainingOneof().Name())
	}
	return text
}

// flattenEnums names a value below its enum, although its full name in protobuf is beside it.
func flattenEnums(enums protoreflect.EnumDescriptors, flat map[string]string) {
	for i := range enums.Len() {
		enum := enums.Get(i)
		flat[string(enum.FullName())] = "enum"
		for j := range enum.Values().Len() {
			value := enum.Values().Get(j)
			flat[fmt.Sprintf("%s.%s", enum.FullName(), value.Name())] = fmt.Sprint(value.Number())
		}
	}
}

func stream(streaming bool) string {
	if streaming {
		return "stream "
	}
	return ""
}

// --- options ---

// ownOptions asks the built driver for the schemas of its two blocks.
func ownOptions(t *testing.T) map[string]string {
	binary := os.Getenv("OCI_RS_BIN")
	must.NotEq(t, "", binary, must.Sprint("set OCI_RS_BIN, or run scripts/conformance.sh"))
	client := goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig: base.Handshake,
		Plugins: map[string]goplugin.Plugin{
			base.PluginTypeBase:   &base.PluginBase{},
			base.PluginTypeDriver: drivers.NewDriverPlugin(nil, hclog.NewNullLogger()),
		},
		Cmd:              exec.Command(binary),
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		Logger:           hclog.NewNullLogger(),
	})
	defer client.Kill()
	rpc, err := client.Client()
	must.NoError(t, err)
	plugin, err := rpc.Dispense(base.PluginTypeBase)
	must.NoError(t, err)
	driver, err := rpc.Dispense(base.PluginTypeDriver)
	must.NoError(t, err)

	flat := map[string]string{}
	spec, err := plugin.(base.BasePlugin).ConfigSchema()
	must.NoError(t, err)
	flattenSpec("plugin", spec, flat)
	spec, err = driver.(drivers.DriverPlugin).TaskConfigSchema()
	must.NoError(t, err)
	flattenSpec("task", spec, flat)
	return flat
}

// flattenSpec names each option by its path in HCL, with its kind and type. Default values are not compared: the texts
// of both drivers' documentation describe them.
func flattenSpec(path string, spec *hclspec.Spec, flat map[string]string) {
	switch {
	case spec.GetObject() != nil:
		for _, member := range spec.GetObject().Attributes {
			flattenSpec(path, member, flat)
		}
	case spec.GetDefault() != nil:
		flattenSpec(path, spec.GetDefault().Primary, flat)
	case spec.GetAttr() != nil:
		attr := spec.GetAttr()
		flat[path+"."+attr.Name] = "attribute " + attr.Type + required(attr.Required)
	case spec.GetBlockAttrs() != nil:
		block := spec.GetBlockAttrs()
		flat[path+"."+block.Name] = "block of any " + block.Type + required(block.Required)
	case spec.GetBlockValue() != nil:
		block := spec.GetBlockValue()
		flat[path+"."+block.Name] = "block" + required(block.Required)
		flattenSpec(path+"."+block.Name, block.Nested, flat)
	case spec.GetBlockList() != nil:
		block := spec.GetBlockList()
		flat[path+"."+block.Name] = fmt.Sprintf("list of blocks %d %d", block.MinItems, block.MaxItems)
		flattenSpec(path+"."+block.Name, block.Nested, flat)
	case spec.GetBlockSet() != nil:
		block := spec.GetBlockSet()
		flat[path+"."+block.Name] = fmt.Sprintf("set of blocks %d %d", block.MinItems, block.MaxItems)
		flattenSpec(path+"."+block.Name, block.Nested, flat)
	case spec.GetBlockMap() != nil:
		block := spec.GetBlockMap()
		flat[path+"."+block.Name] = fmt.Sprintf("blocks with labels %v", block.Labels)
		flattenSpec(path+"."+block.Name, block.Nested, flat)
	}
}

func required(required bool) string {
	if required {
		return " required"
	}
	return ""
}
