#!/usr/bin/env bash
# Runs Nomad's own driver tests against the built plugin, with a local registry: conformance.sh [go test flags]
# OCI_RS_CONFORMANCE_TESTS names a built test binary, for a machine without Go.
. "$(dirname "$0")/lib.sh"

directory=$(mktemp -d -t oci-rs-conformance.XXXXXX)
REGISTRY_PID=''
cleanup() {
    local status=$?
    [ -z "$REGISTRY_PID" ] || end_process "$REGISTRY_PID" 5
    remove_directory "$directory"
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

port=$(free_port)
start_registry "$directory/registry" "$port"
"$ROOT/scripts/image.sh" "$directory/layout"
push_image "$directory/layout" busybox conformance/busybox:1.0 "$port"

export OCI_RS_BIN=${OCI_RS_BIN:-$TARGET_DIR/debug/oci-rs}
export OCI_RS_IMAGE=127.0.0.1:$port/conformance/busybox:1.0 OCI_RS_CONFORMANCE_DIR=$directory
run_tests() {
    if [ -n "${OCI_RS_CONFORMANCE_TESTS:-}" ]; then
        "$OCI_RS_CONFORMANCE_TESTS" -test.timeout 60m -test.v "$@"
        return
    fi
    cd "$ROOT/e2e/conformance"
    # -trimpath, as in the build of Nomad, so that both share one build cache.
    go test -trimpath -count=1 -timeout 10m -v "$@" ./...
}
# The full log is printed only after a failure.
if ! (run_tests "$@") >"$directory/test.log" 2>&1; then
    cat "$directory/test.log"
    exit 1
fi
grep -E '^ *--- |^(ok|PASS|\?)' "$directory/test.log"
left=$(leaks "$directory")
[ -z "$left" ] || { warn "left behind: $left"; exit 1; }
