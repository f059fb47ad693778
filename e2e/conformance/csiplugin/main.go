// A CSI plugin for the e2e cases: controller and node service in one program. A volume is a directory of the plugin's
// task, and a published volume is a bind mount of it.
package main

import (
	"context"
	"errors"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The directory with a subdirectory for each volume.
const volumes = "/alloc/data/volumes"

type plugin struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer
}

func main() {
	path := strings.TrimPrefix(os.Getenv("CSI_ENDPOINT"), "unix://")
	if err := os.MkdirAll(volumes, 0o755); err != nil {
		log.Fatal(err)
	}
	// The socket of an earlier start.
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		log.Fatal(err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, plugin{})
	csi.RegisterControllerServer(server, plugin{})
	csi.RegisterNodeServer(server, plugin{})
	log.Fatal(server.Serve(listener))
}

func directory(id string) (string, error) {
	if id == "" || strings.ContainsAny(id, "/.") {
		return "", status.Error(codes.InvalidArgument, "the id of a volume is a word")
	}
	return filepath.Join(volumes, id), nil
}

func (plugin) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: "oci-rs.e2e", VendorVersion: "0.1.0"}, nil
}

func (plugin) GetPluginCapabilities(
	context.Context, *csi.GetPluginCapabilitiesRequest,
) (*csi.GetPluginCapabilitiesResponse, error) {
	service := &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}
	return &csi.GetPluginCapabilitiesResponse{
		Capabilities: []*csi.PluginCapability{{Type: &csi.PluginCapability_Service_{Service: service}}},
	}, nil
}

func (plugin) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (plugin) ControllerGetCapabilities(
	context.Context, *csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	rpc := &csi.ControllerServiceCapability_RPC{Type: csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME}
	return &csi.ControllerGetCapabilitiesResponse{
		Capabilities: []*csi.ControllerServiceCapability{{Type: &csi.ControllerServiceCapability_Rpc{Rpc: rpc}}},
	}, nil
}

func (plugin) CreateVolume(_ context.Context, request *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	path, err := directory(request.Name)
	if err != nil {
		return nil, err
	}
	// Chmod, because the umask applies to Mkdir.
	if err := errors.Join(os.MkdirAll(path, 0o777), os.Chmod(path, 0o777)); err != nil {
		return nil, err
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: request.Name}}, nil
}

func (plugin) DeleteVolume(_ context.Context, request *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	path, err := directory(request.VolumeId)
	if err != nil {
		return nil, err
	}
	return &csi.DeleteVolumeResponse{}, os.RemoveAll(path)
}

func (plugin) ValidateVolumeCapabilities(
	_ context.Context, request *csi.ValidateVolumeCapabilitiesRequest,
) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	confirmed := &csi.ValidateVolumeCapabilitiesResponse_Confirmed{VolumeCapabilities: request.VolumeCapabilities}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: confirmed}, nil
}

func (plugin) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: "e2e"}, nil
}

func (plugin) NodeGetCapabilities(
	context.Context, *csi.NodeGetCapabilitiesRequest,
) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

func (plugin) NodePublishVolume(
	_ context.Context, request *csi.NodePublishVolumeRequest,
) (*csi.NodePublishVolumeResponse, error) {
	source, err := directory(request.VolumeId)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(request.TargetPath, 0o755); err != nil {
		return nil, err
	}
	if err := syscall.Mount(source, request.TargetPath, "", syscall.MS_BIND, ""); err != nil {
		return nil, status.Errorf(codes.Internal, "mounting at %s: %v", request.TargetPath, err)
	}
	if request.Readonly {
		flags := uintptr(syscall.MS_BIND | syscall.MS_REMOUNT | syscall.MS_RDONLY)
		if err := syscall.Mount("", request.TargetPath, "", flags, ""); err != nil {
			return nil, status.Errorf(codes.Internal, "remounting %s: %v", request.TargetPath, err)
		}
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

func (plugin) NodeUnpublishVolume(
	_ context.Context, request *csi.NodeUnpublishVolumeRequest,
) (*csi.NodeUnpublishVolumeResponse, error) {
	// Unpublishing twice is no error.
	err := syscall.Unmount(request.TargetPath, 0)
	if err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOENT) {
		return nil, status.Errorf(codes.Internal, "unmounting %s: %v", request.TargetPath, err)
	}
	if err := os.RemoveAll(request.TargetPath); err != nil {
		return nil, err
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}
