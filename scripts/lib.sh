# Functions that the other scripts share. Source it: . "$(dirname "$0")/lib.sh"
# The scripts write only to the checkout, the tools' cache and mktemp directories. They end only processes that they
# started, by pid.
# shellcheck shell=bash

set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
TOOLS=${XDG_CACHE_HOME:-$HOME/.cache}/oci-rs/tools
# The supported versions of Nomad, the oldest first. e2e/src/versions.rs has the same list.
NOMAD_VERSIONS="1.8.3 1.9.4 1.10.5 1.11.2 1.11.3"
NOMAD_OLDEST=${NOMAD_VERSIONS%% *}
NOMAD_VERSION=${NOMAD_VERSIONS##* }
NOMAD=${OCI_RS_NOMAD:-$TOOLS/nomad-$NOMAD_VERSION}
CONSUL_VERSION=1.22.2
CONSUL=${OCI_RS_CONSUL:-$TOOLS/consul-$CONSUL_VERSION}
ENVOY_VERSION=1.36.4
ENVOY=${OCI_RS_ENVOY:-$TOOLS/envoy-$ENVOY_VERSION}
# The kernel of scripts/test-v2.sh: 6.1 or 6.12.
KERNEL=${KERNEL:-6.1}
CARGO_DENY_VERSION=0.20.2
CARGO_CYCLONEDX_VERSION=0.5.9
TARGET=x86_64-unknown-linux-musl
TARGET_DIR=${CARGO_TARGET_DIR:-$ROOT/target}/$TARGET
CNI_PATH=${CNI_PATH:-/usr/lib/cni}

# Debian keeps iptables and ip in directories that a plain user's PATH lacks.
export PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
# Nomad prints no hints about its web interface after each command.
export NOMAD_CLI_SHOW_HINTS=0
# The checkout may belong to another user. Then git refuses to work in it, so Go must not call git.
export GOFLAGS="${GOFLAGS:+$GOFLAGS }-buildvcs=false"

if [ -t 1 ]; then BOLD=$'\e[1m' DIM=$'\e[2m' RED=$'\e[31m' GREEN=$'\e[32m' PLAIN=$'\e[0m'
else BOLD='' DIM='' RED='' GREEN='' PLAIN=''; fi

say() { printf '%s==> %s%s\n' "$BOLD" "$*" "$PLAIN"; }
note() { printf '%s    %s%s\n' "$DIM" "$*" "$PLAIN"; }
warn() { printf '%s%s%s\n' "$RED" "$*" "$PLAIN" >&2; }
die() { warn "$*"; exit 1; }

need_root() { [ "$(id -u)" = 0 ] || die "$1 needs root: Nomad clients and containers do. Run it with sudo."; }

# package:file. A package is missing if its file is. These build the driver, and make and run the demo's job.
DEMO_PACKAGES="busybox-static:/bin/busybox ca-certificates:/etc/ssl/certs/ca-certificates.crt
    containernetworking-plugins:$CNI_PATH/bridge curl:/usr/bin/curl docker-registry:/usr/bin/docker-registry
    gcc:/usr/bin/gcc iproute2:/sbin/ip iptables:/usr/sbin/iptables jq:/usr/bin/jq
    libc6-dev:/usr/lib/x86_64-linux-gnu/crt1.o libdevmapper1.02.1:/lib/x86_64-linux-gnu/libdevmapper.so.1.02.1
    musl-tools:/usr/bin/musl-gcc skopeo:/usr/bin/skopeo"

# missing_packages LIST: prints the names of the packages of a list that are missing.
missing_packages() {
    local entry missing=()
    for entry in $1; do [ -e "${entry#*:}" ] || missing+=("${entry%%:*}"); done
    echo "${missing[*]}"
}

# need_programs WHAT: ends with one line that names all programs that this machine lacks and no script installs.
need_programs() {
    local missing=()
    command -v cargo >/dev/null || missing+=("Rust (https://rustup.rs)")
    [ -x "$NOMAD" ] || command -v go >/dev/null || missing+=("Go 1.21 or later (https://go.dev/dl)")
    [ -z "$(missing_packages "$DEMO_PACKAGES")" ] || command -v apt-get >/dev/null ||
        missing+=("apt-get, or its packages $(missing_packages "$DEMO_PACKAGES")")
    [ ${#missing[@]} = 0 ] || die "$1 needs $(printf '%s; ' "${missing[@]}" | sed 's/; $//')"
}

# wait_for SECONDS WHAT COMMAND... : waits until the command succeeds.
wait_for() {
    local limit=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $limit ] || { warn "gave up waiting for $what"; return 1; }
        sleep 0.1
    done
}

# Prints a free TCP port of the loopback address, below the range of outgoing connections.
free_port() {
    local port
    while :; do
        port=$((RANDOM % 9000 + 10000))
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port"; return; }
    done
}

# end_process PID [SECONDS]: sends SIGTERM, and SIGKILL after the time. Only for processes that these scripts started.
end_process() {
    local pid=$1 limit=$((SECONDS + ${2:-20}))
    kill -TERM "$pid" 2>/dev/null || return 0
    while kill -0 "$pid" 2>/dev/null; do
        if [ $SECONDS -ge $limit ]; then kill -KILL "$pid" 2>/dev/null || true; break; fi
        sleep 0.1
    done
}

# start_registry DIRECTORY PORT: starts a registry on the loopback address and sets REGISTRY_PID.
start_registry() {
    local directory=$1 port=$2
    mkdir -p "$directory/blobs"
    cat >"$directory/config.yml" <<YAML
version: 0.1
log: {level: error, accesslog: {disabled: true}}
storage: {filesystem: {rootdirectory: $directory/blobs}}
http: {addr: "127.0.0.1:$port"}
YAML
    # Without telemetry to other machines.
    OTEL_TRACES_EXPORTER=none docker-registry serve "$directory/config.yml" >"$directory/registry.log" 2>&1 &
    REGISTRY_PID=$!
    wait_for 20 "the registry" curl -fsS "http://127.0.0.1:$port/v2/" ||
        { cat "$directory/registry.log" >&2; return 1; }
}

# push_image LAYOUT TAG NAME:TAG PORT
push_image() {
    skopeo --insecure-policy copy --quiet --dest-tls-verify=false "oci:$1:$2" "docker://127.0.0.1:$4/$3"
}

# Prints the built tests: the name of the target and the path of the executable.
built_tests() {
    cargo test --quiet --workspace --no-run --message-format=json |
        jq -r 'select(.profile.test and .executable) | "\(.target.name) \(.executable)"'
}

# Whether EROFS layers can be mounted from the temporary directory. If so, the store's tests run once more with them.
can_mount_erofs() {
    modprobe -q erofs 2>/dev/null || true
    [ "$(printf '%s\n' 6.12 "$(uname -r)" | sort -V | head -n 1)" = 6.12 ] && grep -qw erofs /proc/filesystems &&
        ! stat -f -c %T "${TMPDIR:-/tmp}" | grep -qE '^(tmpfs|overlayfs)$'
}

# --- a Nomad agent ---

# start_agent DIRECTORY DRIVER: starts server and client with their own data, ports and bridge. The driver is an
# executable, or a directory that becomes the agent's plugin_dir. Writes the agent's pid, address and network to
# DIRECTORY/env, for the caller to source.
start_agent() {
    local directory=$1 binary=$2 number=$((RANDOM % 250)) http rpc serf low plugin
    http=$(free_port) rpc=$(free_port) serf=$(free_port) low=$((RANDOM % 1000 * 10 + 20000))
    while ip -br addr | grep -qF "172.27.$number."; do number=$((RANDOM % 250)); done
    mkdir -p "$directory/tmp"
    if [ -d "$binary" ]; then
        ln -s "$binary" "$directory/plugins"
    else
        mkdir -p "$directory/plugins"
        cp "$binary" "$directory/plugins/oci-rs"
    fi
    cat "$ROOT/e2e/common.hcl.in" "$ROOT/e2e/server.hcl" "$ROOT/e2e/client.hcl.in" |
        sed -e "s|@NAME@|nomad|; s|@DIR@|$directory|; s|@LOG_LEVEL@|INFO|; s|@RAW_EXEC@|false|" \
            -e "s|@DRIVERS@|oci-rs,raw_exec|" \
            -e "s|@CNI_PATH@|$CNI_PATH|" \
            -e "s|@CONSUL@|127.0.0.1:8500|; s|@CONSUL_GRPC@|127.0.0.1:8502|; s|@NO_CONSUL@|,consul|" \
            -e "s|@HTTP_PORT@|$http|; s|@RPC_PORT@|$rpc|; s|@SERVER_PORT@|$rpc|; s|@SERF_PORT@|$serf|" \
            -e "s|@MIN_PORT@|$low|; s|@MAX_PORT@|$((low + 100))|" \
            -e "s|@BRIDGE@|oci-rs-$number|; s|@SUBNET@|172.27.$number.0/24|" \
            -e "s|@OWN_BRIDGE@|oci-own-$number|; s|@OWN_SUBNET@|172.28.$number.0/24|; s|@OWN_SUBNET6@||" \
            -e "s|@USERNS@|${OCI_RS_USERNS:-auto}|; /@NETWORKS@/d" >"$directory/agent.hcl"
    # Nomad 1.11 loads no plugin without its block.
    for plugin in "$directory"/plugins/*; do
        [ "${plugin##*/}" = oci-rs ] || printf 'plugin "%s" {}\n' "${plugin##*/}" >>"$directory/agent.hcl"
    done
    printf '%s\n' "BRIDGE=oci-rs-$number" "SUBNET=172.27.$number.0/24" \
        "export NOMAD_ADDR=http://127.0.0.1:$http" "export OCI_RS_RUN_DIR=$directory/run" >"$directory/env"
    launch_agent "$directory"
}

# launch_agent DIRECTORY: starts the agent with the configuration that start_agent wrote, also again after its end.
launch_agent() {
    local directory=$1 address
    address=$(. "$directory/env" && echo "$NOMAD_ADDR")
    # In its own session: Ctrl-C in the terminal must not reach it before its jobs are stopped. With its own directory
    # for the sockets between agent and plugins, which a killed agent leaves behind.
    TMPDIR=$directory/tmp OCI_RS_RUN_DIR=$directory/run \
        setsid "$NOMAD" agent -config "$directory/agent.hcl" >>"$directory/agent.log" 2>&1 </dev/null &
    echo "AGENT_PID=$!" >>"$directory/env"
    wait_for 60 "the Nomad agent" node_ready "$address" ||
        { tail -n 40 "$directory/agent.log" >&2; return 1; }
}

node_ready() {
    curl -fsS "$1/v1/nodes?resources=false" | jq -e '.[0].Status == "ready" and .[0].Drivers["oci-rs"].Healthy'
}

# stop_agent DIRECTORY: stops and purges all jobs, stops the agent, and removes the bridge that Nomad leaves.
stop_agent() {
    local directory=$1 job AGENT_PID BRIDGE SUBNET
    . "$directory/env"
    if kill -0 "$AGENT_PID" 2>/dev/null; then
        for job in $(curl -fsS "$NOMAD_ADDR/v1/jobs" | jq -r '.[].ID'); do
            "$NOMAD" job stop -purge -detach "$job" >/dev/null || true
        done
        wait_for 60 "the jobs to stop" all_stopped || true
        # The client unmounts and removes an allocation's directory only at garbage collection.
        curl -fsS -X PUT "$NOMAD_ADDR/v1/system/gc" || true
        wait_for 30 "the allocations' mounts to go" no_mounts "$directory" || true
        end_process "$AGENT_PID"
    fi
    # The driver's own bridge, if a job used it.
    ip link delete "oci-own-${BRIDGE##*-}" 2>/dev/null || true
    iptables -w -D OCI-RS-ADMIN -d "172.28.${BRIDGE##*-}.0/24" -o "oci-own-${BRIDGE##*-}" -j ACCEPT 2>/dev/null || true
    ip link delete "$BRIDGE" 2>/dev/null || true
    iptables -w -D NOMAD-ADMIN -d "$SUBNET" -o "$BRIDGE" -j ACCEPT 2>/dev/null || true
}

all_stopped() {
    curl -fsS "$NOMAD_ADDR/v1/allocations" |
        jq -e 'all(.ClientStatus == "complete" or .ClientStatus == "failed" or .ClientStatus == "lost")'
}

no_mounts() { ! grep -qF "$1/" /proc/self/mountinfo; }

# leaks DIRECTORY ALLOCATION...: prints leftovers of a run. Prints nothing if there are none.
leaks() {
    local directory=$1 proc command alloc
    shift
    for proc in /proc/[0-9]*; do
        command=$(tr '\0' ' ' 2>/dev/null <"$proc/cmdline") || continue
        [ "${proc#/proc/}" != $$ ] && [ "${proc#/proc/}" != "$BASHPID" ] || continue
        if [[ $command = *"$directory"* && $command != *registry* ]]; then
            echo "process ${proc#/proc/}: $command"
            continue
        fi
        for alloc in "$@"; do
            if tr '\0' '\n' 2>/dev/null <"$proc/environ" | grep -qx "NOMAD_ALLOC_ID=$alloc"; then
                echo "process ${proc#/proc/}: $command"
            fi
        done
    done
    grep -F "$directory/" /proc/self/mountinfo | sed 's/^/mount /' || true
    for alloc in "$@"; do
        find /sys/fs/cgroup -type d -name "$alloc*" 2>/dev/null | sed 's/^/cgroup /'
        [ ! -e "/run/netns/$alloc" ] || echo "network namespace /run/netns/$alloc"
        iptables-save 2>/dev/null | grep -F "$alloc" | sed 's/^/iptables /' || true
    done
    find "$directory/state/tasks" "$directory/state/networks" "$directory/data/containers" -mindepth 1 -maxdepth 1 \
        2>/dev/null | sed 's/^/directory /' || true
}

# remove_directory DIRECTORY: unmounts the mounts of a failed run in it and removes it, never through a mount.
remove_directory() {
    local mount
    awk -v directory="$1/" 'index($5, directory) == 1 { print $5 }' /proc/self/mountinfo | sort -r |
        while read -r mount; do umount -l "$mount" || true; done
    rm -rf --one-file-system "$1"
}
