// A device plugin for the e2e cases. It has two devices, "boxes". A task that reserves one gets a device node, two
// directories and a variable.
package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
)

// The ids of the devices.
var ids = []string{"left", "right"}

type boxes struct {
	config struct {
		// Directory with one subdirectory for each box and one shared subdirectory.
		Directory string `codec:"directory"`
		// The device node of the host that each box uses.
		Node string `codec:"node"`
	}
}

func main() {
	plugins.Serve(func(hclog.Logger) any { return &boxes{} })
}

func (*boxes) PluginInfo() (*base.PluginInfoResponse, error) {
	return &base.PluginInfoResponse{
		Type:              base.PluginTypeDevice,
		PluginApiVersions: []string{device.ApiVersion010},
		PluginVersion:     "0.1.0",
		Name:              "boxes",
	}, nil
}

func (*boxes) ConfigSchema() (*hclspec.Spec, error) {
	return hclspec.NewObject(map[string]*hclspec.Spec{
		"directory": hclspec.NewAttr("directory", "string", true),
		"node":      hclspec.NewAttr("node", "string", true),
	}), nil
}

func (b *boxes) SetConfig(config *base.Config) error {
	return base.MsgPackDecode(config.PluginConfig, &b.config)
}

// Fingerprint sends the boxes once. The stream stays open, because its end would mean that the plugin has failed.
func (*boxes) Fingerprint(ctx context.Context) (<-chan *device.FingerprintResponse, error) {
	group := &device.DeviceGroup{Vendor: "oci-rs", Type: "box", Name: "cardboard"}
	for _, id := range ids {
		group.Devices = append(group.Devices, &device.Device{ID: id, Healthy: true})
	}
	out := make(chan *device.FingerprintResponse, 1)
	out <- device.NewFingerprint(group)
	go closeAtEnd(ctx, out)
	return out, nil
}

func (b *boxes) Reserve(wanted []string) (*device.ContainerReservation, error) {
	reservation := &device.ContainerReservation{
		Envs:   map[string]string{"BOXES": strings.Join(wanted, ",")},
		Mounts: []*device.Mount{{TaskPath: "/boxes/shared", HostPath: filepath.Join(b.config.Directory, "shared")}},
	}
	for _, id := range wanted {
		if !slices.Contains(ids, id) {
			return nil, fmt.Errorf("there is no box %q", id)
		}
		reservation.Mounts = append(reservation.Mounts,
			&device.Mount{TaskPath: "/boxes/" + id, HostPath: filepath.Join(b.config.Directory, id), ReadOnly: true})
		reservation.Devices = append(reservation.Devices,
			&device.DeviceSpec{TaskPath: "/dev/box-" + id, HostPath: b.config.Node, CgroupPerms: "r"})
	}
	return reservation, nil
}

// Stats sends nothing.
func (*boxes) Stats(ctx context.Context, _ time.Duration) (<-chan *device.StatsResponse, error) {
	out := make(chan *device.StatsResponse)
	go closeAtEnd(ctx, out)
	return out, nil
}

func closeAtEnd[T any](ctx context.Context, out chan T) {
	<-ctx.Done()
	close(out)
}
