# What the other scripts share. Source it: . "$(dirname "$0")/lib.sh"
# Holds always: nothing outside the checkout, the tools' cache and mktemp directories is written, and every process started is
# ended by its own pid.
# shellcheck shell=bash

set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
TOOLS=${XDG_CACHE_HOME:-$HOME/.cache}/oci-rs/tools
NOMAD_VERSION=1.11.2
NOMAD=${OCI_RS_NOMAD:-$TOOLS/nomad-$NOMAD_VERSION}
CONSUL_VERSION=1.22.2
CONSUL=${OCI_RS_CONSUL:-$TOOLS/consul-$CONSUL_VERSION}
ENVOY_VERSION=1.36.4
ENVOY=${OCI_RS_ENVOY:-$TOOLS/envoy-$ENVOY_VERSION}
CARGO_DENY_VERSION=0.20.2
TARGET=x86_64-unknown-linux-musl
TARGET_DIR=${CARGO_TARGET_DIR:-$ROOT/target}/$TARGET
CNI_PATH=${CNI_PATH:-/usr/lib/cni}

# Debian keeps iptables and ip in directories that a plain user's PATH lacks.
export PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
# No advertising of web pages after each command.
export NOMAD_CLI_SHOW_HINTS=0
# The checkout may belong to another user than the one who builds: Go must not ask git about it.
export GOFLAGS="${GOFLAGS:+$GOFLAGS }-buildvcs=false"

if [ -t 1 ]; then BOLD=$'\e[1m' DIM=$'\e[2m' RED=$'\e[31m' GREEN=$'\e[32m' PLAIN=$'\e[0m'
else BOLD='' DIM='' RED='' GREEN='' PLAIN=''; fi

say() { printf '%s==> %s%s\n' "$BOLD" "$*" "$PLAIN"; }
note() { printf '%s    %s%s\n' "$DIM" "$*" "$PLAIN"; }
warn() { printf '%s%s%s\n' "$RED" "$*" "$PLAIN" >&2; }
die() { warn "$*"; exit 1; }

need_root() { [ "$(id -u)" = 0 ] || die "$1 needs root: Nomad clients and containers do. Run it with sudo."; }

# wait_for SECONDS WHAT COMMAND... : until the command succeeds.
wait_for() {
    local limit=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $limit ] || { warn "gave up waiting for $what"; return 1; }
        sleep 0.1
    done
}

# A TCP port of the loopback address that nobody listens on, below the range that outgoing connections use.
free_port() {
    local port
    while :; do
        port=$((RANDOM % 9000 + 10000))
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port"; return; }
    done
}

# end_process PID [SECONDS]: asks with SIGTERM, and insists after a while. Only for processes that we started.
end_process() {
    local pid=$1 limit=$((SECONDS + ${2:-20}))
    kill -TERM "$pid" 2>/dev/null || return 0
    while kill -0 "$pid" 2>/dev/null; do
        if [ $SECONDS -ge $limit ]; then kill -KILL "$pid" 2>/dev/null || true; break; fi
        sleep 0.1
    done
}

# start_registry DIRECTORY PORT: a real registry on the loopback address; its pid is left in REGISTRY_PID.
start_registry() {
    local directory=$1 port=$2
    mkdir -p "$directory/blobs"
    printf 'version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: "127.0.0.1:%s"}\n' \
        "$directory/blobs" "$port" >"$directory/config.yml"
    # Its telemetry must not reach out.
    OTEL_TRACES_EXPORTER=none docker-registry serve "$directory/config.yml" >"$directory/registry.log" 2>&1 &
    REGISTRY_PID=$!
    wait_for 20 "the registry" curl -fsS "http://127.0.0.1:$port/v2/" || { cat "$directory/registry.log" >&2; return 1; }
}

# push_image LAYOUT TAG NAME:TAG PORT
push_image() {
    skopeo --insecure-policy copy --quiet --dest-tls-verify=false "oci:$1:$2" "docker://127.0.0.1:$4/$3"
}

# --- a Nomad agent -----------------------------------------------------------------------------------------------------

# start_agent DIRECTORY DRIVER-BINARY: server and client with its own data, ports and bridge. Leaves the agent's pid, address and
# network in DIRECTORY/env, for the caller to source.
start_agent() {
    local directory=$1 binary=$2 number=$((RANDOM % 250)) http rpc serf low
    http=$(free_port) rpc=$(free_port) serf=$(free_port) low=$((RANDOM % 1000 * 10 + 20000))
    while ip -br addr | grep -qF "172.27.$number."; do number=$((RANDOM % 250)); done
    mkdir -p "$directory/plugins" "$directory/tmp"
    cp "$binary" "$directory/plugins/oci-rs"
    cat "$ROOT/e2e/common.hcl.in" "$ROOT/e2e/server.hcl" "$ROOT/e2e/client.hcl.in" |
        sed -e "s|@NAME@|nomad|; s|@DIR@|$directory|; s|@LOG_LEVEL@|INFO|; s|@RAW_EXEC@|false|; s|@CNI_PATH@|$CNI_PATH|" \
            -e "s|@CONSUL@|127.0.0.1:8500|; s|@CONSUL_GRPC@|127.0.0.1:8502|; s|@NO_CONSUL@|,consul|" \
            -e "s|@HTTP_PORT@|$http|; s|@RPC_PORT@|$rpc|; s|@SERVER_PORT@|$rpc|; s|@SERF_PORT@|$serf|" \
            -e "s|@MIN_PORT@|$low|; s|@MAX_PORT@|$((low + 100))|; s|@BRIDGE@|oci-rs-$number|; s|@SUBNET@|172.27.$number.0/24|" \
            -e "s|@OWN_BRIDGE@|oci-own-$number|; s|@OWN_SUBNET@|172.28.$number.0/24|; s|@OWN_SUBNET6@||" \
            -e "/@NETWORKS@/d" >"$directory/agent.hcl"
    # In a session of its own: Ctrl-C in the terminal must not reach it before its jobs are stopped. With a directory of its own for
    # the sockets between agent and plugins, which a killed agent leaves.
    TMPDIR=$directory/tmp setsid "$NOMAD" agent -config "$directory/agent.hcl" >"$directory/agent.log" 2>&1 </dev/null &
    printf '%s\n' "AGENT_PID=$!" "BRIDGE=oci-rs-$number" "SUBNET=172.27.$number.0/24" \
        "export NOMAD_ADDR=http://127.0.0.1:$http" >"$directory/env"
    wait_for 60 "the Nomad agent" node_ready "http://127.0.0.1:$http" || { tail -n 40 "$directory/agent.log" >&2; return 1; }
}

node_ready() {
    curl -fsS "$1/v1/nodes?resources=false" | jq -e '.[0].Status == "ready" and .[0].Drivers["oci-rs"].Healthy'
}

# stop_agent DIRECTORY: stops and forgets all jobs, then the agent, then removes the bridge that Nomad leaves.
stop_agent() {
    local directory=$1 job AGENT_PID BRIDGE SUBNET
    . "$directory/env"
    if kill -0 "$AGENT_PID" 2>/dev/null; then
        for job in $(curl -fsS "$NOMAD_ADDR/v1/jobs" | jq -r '.[].ID'); do
            "$NOMAD" job stop -purge -detach "$job" >/dev/null || true
        done
        wait_for 60 "the jobs to stop" all_stopped || true
        # Only collection makes the client remove an allocation's directory and unmount what is in it.
        curl -fsS -X PUT "$NOMAD_ADDR/v1/system/gc" || true
        wait_for 30 "the allocations' mounts to go" no_mounts "$directory" || true
        end_process "$AGENT_PID"
    fi
    # The bridge of the driver's own too, if a job needed it.
    ip link delete "oci-own-${BRIDGE##*-}" 2>/dev/null || true
    iptables -w -D OCI-RS-ADMIN -d "172.28.${BRIDGE##*-}.0/24" -o "oci-own-${BRIDGE##*-}" -j ACCEPT 2>/dev/null || true
    ip link delete "$BRIDGE" 2>/dev/null || true
    iptables -w -D NOMAD-ADMIN -d "$SUBNET" -o "$BRIDGE" -j ACCEPT 2>/dev/null || true
}

all_stopped() {
    curl -fsS "$NOMAD_ADDR/v1/allocations" | jq -e 'all(.ClientStatus == "complete" or .ClientStatus == "failed" or .ClientStatus == "lost")'
}

no_mounts() { ! grep -qF "$1/" /proc/self/mountinfo; }

# leaks DIRECTORY ALLOCATION...: prints what is left of a run, nothing when all is clean.
leaks() {
    local directory=$1 proc command alloc
    shift
    for proc in /proc/[0-9]*; do
        command=$(tr '\0' ' ' <"$proc/cmdline" 2>/dev/null) || continue
        [ "${proc#/proc/}" != $$ ] && [ "${proc#/proc/}" != "$BASHPID" ] || continue
        if [[ $command = *"$directory"* && $command != *registry* ]]; then echo "process ${proc#/proc/}: $command"; continue; fi
        for alloc in "$@"; do
            if tr '\0' '\n' 2>/dev/null <"$proc/environ" | grep -qx "NOMAD_ALLOC_ID=$alloc"; then echo "process ${proc#/proc/}: $command"; fi
        done
    done
    grep -F "$directory/" /proc/self/mountinfo | sed 's/^/mount /' || true
    for alloc in "$@"; do
        find /sys/fs/cgroup -type d -name "$alloc*" 2>/dev/null | sed 's/^/cgroup /'
        [ ! -e "/run/netns/$alloc" ] || echo "network namespace /run/netns/$alloc"
        iptables-save 2>/dev/null | grep -F "$alloc" | sed 's/^/iptables /' || true
    done
    find "$directory/state/tasks" "$directory/state/networks" "$directory/data/containers" -mindepth 1 -maxdepth 1 2>/dev/null | sed 's/^/directory /' || true
}

# remove_directory DIRECTORY: with whatever a failed run left mounted in it, never through a mount into something else.
remove_directory() {
    local mount
    awk -v directory="$1/" 'index($5, directory) == 1 { print $5 }' /proc/self/mountinfo | sort -r |
        while read -r mount; do umount -l "$mount" || true; done
    rm -rf --one-file-system "$1"
}
