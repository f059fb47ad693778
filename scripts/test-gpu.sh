#!/usr/bin/env bash
# Runs jobs that compute on the NVIDIA GPU of this machine, on a real Nomad agent. Needs root, NVIDIA's driver, a C
# compiler and Go. OCI_RS_NVIDIA names a directory with nvidia-ctk, nvidia-cdi-hook and nomad-device-nvidia. Without it
# they are built from their sources.
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

NVIDIA_TOOLKIT=v1.20.2
NVIDIA_PLUGIN=v1.1.0

need_root "test-gpu"
[ -e /dev/nvidiactl ] || die "this machine has no NVIDIA GPU, or its driver is not loaded: /dev/nvidiactl is missing"
if [ -z "${OCI_RS_NVIDIA:-}" ]; then
    OCI_RS_NVIDIA=$TOOLS/nvidia
    toolkit=github.com/NVIDIA/nvidia-container-toolkit/cmd
    plugin=github.com/hashicorp/nomad-device-nvidia/cmd
    export GOBIN=$OCI_RS_NVIDIA CGO_ENABLED=1
    [ -x "$GOBIN/nvidia-ctk" ] || go install "$toolkit/nvidia-ctk@$NVIDIA_TOOLKIT"
    [ -x "$GOBIN/nvidia-cdi-hook" ] || go install "$toolkit/nvidia-cdi-hook@$NVIDIA_TOOLKIT"
    if [ ! -x "$GOBIN/nomad-device-nvidia" ]; then
        go install "$plugin@$NVIDIA_PLUGIN"
        mv "$GOBIN/cmd" "$GOBIN/nomad-device-nvidia"
    fi
fi
export OCI_RS_NVIDIA OCI_RS_GPU=1
ONLY=gpu_ exec scripts/check.sh e2e
