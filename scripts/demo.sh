#!/usr/bin/env bash
# Demonstrates the driver on this machine: builds an image, starts a registry and a Nomad agent, runs a web service,
# fetches a page over the network, runs a command in the task, and stops everything. Leaves nothing behind.
#   demo.sh          the whole demo
#   KEEP=1 demo.sh   leaves agent and job running and prints commands to try
#   demo.sh stop     stops a demo that KEEP=1 left running
. "$(dirname "$0")/lib.sh"

need_root "the demo"
# The file with the directory of a demo that was left running, for `demo.sh stop`.
KEPT=${TOOLS%/*}/demo

cleanup() {
    local status=$?
    trap - EXIT
    trap '' INT TERM
    [ $status = 0 ] || show_failure
    [ ! -e "$directory/env" ] || stop_agent "$directory"
    end_process "$REGISTRY_PID" 5
    remove_directory "$directory"
    exit "$status"
}

show_failure() {
    warn "The demo failed. The end of the agent's log:"
    tail -n 30 "$directory/agent.log" >&2 2>/dev/null || true
    [ -z "${alloc:-}" ] || "$NOMAD" alloc status "$alloc" >&2 || true
}

# After a reboot the directory of a kept demo no longer exists.
if [ -e "$KEPT" ] && [ ! -d "$(cat "$KEPT")" ]; then rm -f "$KEPT"; fi

if [ "${1:-}" = stop ]; then
    [ -e "$KEPT" ] || die "no demo is running"
    directory=$(cat "$KEPT")
    say "Stopping the demo"
    REGISTRY_PID=$(cat "$directory/registry.pid")
    stop_agent "$directory"
    end_process "$REGISTRY_PID" 5
    remove_directory "$directory"
    rm -f "$KEPT"
    exit 0
fi
[ ! -e "$KEPT" ] || die "a demo is running already: stop it with \`make demo-stop\`"

binary=${OCI_RS_BIN:-$TARGET_DIR/release/oci-rs}
need_programs "the demo"

# Says what the demo does first, and how long that takes on two cores.
announce() {
    local missing step minutes=1 steps=()
    missing=$(missing_packages "$DEMO_PACKAGES")
    if [ -n "$missing" ]; then
        minutes=$((minutes + 1)) steps+=("1 min   install Debian packages: $missing")
    fi
    if [ ! -x "$NOMAD" ]; then
        minutes=$((minutes + 4)) steps+=("4 min   build Nomad from its Go module, because Debian has no package of it")
    fi
    if [ ! -x "$binary" ]; then
        minutes=$((minutes + 3)) steps+=("3 min   build the driver with all optimizations")
    fi
    if [ ${#steps[@]} = 0 ]; then
        say "The demo takes less than a minute"
        return
    fi
    say "The demo takes about $minutes minutes, and less than one when it runs again. It will first, once:"
    for step in "${steps[@]}"; do note "$step"; done
}
announce

"$ROOT/scripts/setup.sh" demo
if [ -z "${OCI_RS_BIN:-}" ]; then
    say "Building the driver (cargo build --release)"
    (cd "$ROOT" && cargo build --release -p oci-rs)
fi
note "$binary, $(du -h "$binary" | cut -f1), $(file -b "$binary" 2>/dev/null | cut -d, -f1,4 || true)"

directory=$(mktemp -d -t oci-rs-demo.XXXXXX)
REGISTRY_PID=''
trap cleanup EXIT
trap 'exit 130' INT TERM

say "Making an image of Debian's busybox and a web page, and pushing it to a local registry"
registry_port=$(free_port)
start_registry "$directory/registry" "$registry_port"
echo "$REGISTRY_PID" >"$directory/registry.pid"
"$ROOT/scripts/image.sh" "$directory/layout"
push_image "$directory/layout" busybox demo/web:1.0 "$registry_port"
image=127.0.0.1:$registry_port/demo/web:1.0
note "$image"

say "Starting a Nomad agent with the driver in its plugin directory"
start_agent "$directory" "$binary"
. "$directory/env"
"$NOMAD" node status -self -verbose | grep -E '^(Driver|oci-rs) |^driver\.oci-rs' | sed 's/^/    /'

say "Running e2e/jobs/web.nomad.hcl: driver = \"oci-rs\", network mode = \"bridge\", a mapped port"
"$NOMAD" job run -var "image=$image" "$ROOT/e2e/jobs/web.nomad.hcl" |
    grep -E 'Allocation|Evaluation .* finished|Deployment completed' | sed -E 's/^(==>)? */    /'
alloc=$("$NOMAD" job allocs -json web | jq -r '.[0].ID')
address=$(curl -fsS "$NOMAD_ADDR/v1/allocation/$alloc" |
    jq -r '.AllocatedResources.Shared.Ports[0] | "\(.HostIP):\(.Value)"')
"$NOMAD" alloc status "$alloc" | sed -n '/^Recent Events/,$p' | sed 's/^/    /'

say "Fetching a page through the node: curl http://$address/"
curl -fsS --max-time 10 --retry 5 --retry-connrefused "http://$address/" | sed 's/^/    /'

if [ -n "${KEEP:-}" ]; then
    echo "$directory" >"$KEPT"
    trap - EXIT
    say "Left running. Commands to try:"
    cat <<TEXT
    export NOMAD_ADDR=$NOMAD_ADDR PATH=\$PATH:$TOOLS; alias nomad=$NOMAD
    curl http://$address/
    nomad alloc exec -task web ${alloc%%-*} /bin/sh
    nomad alloc logs -f ${alloc%%-*}
    nomad job run -var image=$image $ROOT/e2e/jobs/web.nomad.hcl
    the agent's log: $directory/agent.log       web interface: $NOMAD_ADDR/ui/
    make demo-stop     when you are done
TEXT
    exit 0
fi

say "Its logs: nomad alloc logs"
"$NOMAD" alloc logs "$alloc" | sed 's/^/    /'
"$NOMAD" alloc logs -stderr "$alloc" | sed 's/^/    stderr: /'

say "A command inside: nomad alloc exec"
"$NOMAD" alloc exec -i=false -t=false -task web "$alloc" /bin/sh -c 'id; hostname; echo "$GREETING"; ps -o pid,args' |
    sed 's/^/    /'

say "Stopping it"
"$NOMAD" job stop -detach web >/dev/null
wait_for 60 "the job to stop" all_stopped
"$NOMAD" alloc logs "$alloc" | tail -n 1 | sed 's/^/    its last line: /'
stop_agent "$directory"

say "Looking for anything left behind: processes, mounts, cgroups, network namespaces, firewall rules, directories"
left=$(leaks "$directory" "$alloc")
[ -z "$left" ] || { warn "$left"; die "something was left behind"; }
printf '%s    nothing. The demo took %d s.%s\n' "$GREEN" "$SECONDS" "$PLAIN"
