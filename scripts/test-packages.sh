#!/usr/bin/env bash
# Installs the packages in a clean Debian, runs a job with them, and upgrades and removes them while it runs.
#   test-packages.sh            builds and installs release packages
#   test-packages.sh dev        installs packages of the dev build, which must be there; for CI
# The clean Debian is a directory made from this machine's own apt sources. The agent runs on this machine, and its
# plugin_dir is the package's in that directory. It leaves nothing behind.
. "$(dirname "$0")/lib.sh"
. "$ROOT/scripts/package-lib.sh"
need_root "the packages' test"
cd "$ROOT"

directory=$(mktemp -d -t oci-rs-packages.XXXXXX)
root=$directory/debian
REGISTRY_PID=''
cleanup() {
    local status=$?
    trap - EXIT
    trap '' INT TERM
    [ $status = 0 ] || tail -n 30 "$directory/agent.log" >&2 2>/dev/null || true
    [ ! -e "$directory/env" ] || stop_agent "$directory"
    [ -z "$REGISTRY_PID" ] || end_process "$REGISTRY_PID" 5
    remove_directory "$directory"
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

inside() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"; }

# expect TEXT FILE: the file contains the text.
expect() { grep -qF -- "$1" "$2" || { cat "$2" >&2; die "$2 lacks: $1"; }; }

a_release_needs_a_clean_tagged_commit() {
    say "A release needs a clean, tagged commit with notes"
    local copy=$directory/release version
    git clone --quiet . "$copy"
    version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
    release() { "$copy/scripts/release.sh" check >"$directory/release.log" 2>&1; }
    git -C "$copy" tag -d "v$version" >/dev/null 2>&1 || true
    ! release || die "a release without a tag"
    expect "has no tag v$version" "$directory/release.log"
    git -C "$copy" -c user.name=test -c user.email=test@localhost tag "v$version"
    release || { cat "$directory/release.log" >&2; die "no release of a tag"; }
    expect "ready: version $version" "$directory/release.log"
    touch "$copy/new"
    ! release || die "a release with changes"
    expect "has changes" "$directory/release.log"
    rm -rf "$copy"
}

clean_debian() {
    say "Making a clean Debian"
    mmdebstrap --quiet --mode=root --variant=minbase --include=make --skip=check/empty \
        --dpkgopt='path-exclude=/usr/share/locale/*' "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$root" \
        /etc/apt/sources.list.d/*.sources >"$directory/mmdebstrap.log" 2>&1 ||
        { tail -n 20 "$directory/mmdebstrap.log" >&2; die "mmdebstrap failed"; }
    mkdir -p "$root/packages"
    cp "$directory"/{old,new}/*.deb "$root/packages/"
}

# `make` is in it; no compiler, no Rust and no Go.
a_bare_debian_says_what_is_missing() {
    say "Building in the clean Debian without programs"
    mkdir "$root/checkout"
    cp -a Makefile scripts "$root/checkout/"
    local log=$directory/bare.log
    ! inside HOME=/root make -C /checkout build >"$log" 2>&1 || die "a build without Rust"
    expect "missing: cargo cc musl-gcc (Rust: https://rustup.rs; Debian: gcc libc6-dev musl-tools)" "$log"
    ! inside HOME=/root make -C /checkout demo >"$log" 2>&1 || die "a demo without Rust"
    expect "the demo needs Rust (https://rustup.rs); Go 1.21 or later (https://go.dev/dl)" "$log"
    rm -rf "$root/checkout"
}

the_package_is_complete() {
    say "Installing the .deb"
    inside dpkg -i "/packages/$old" >"$directory/install.log" 2>&1 || { cat "$directory/install.log" >&2; return 1; }
    expect 'plugin_dir = "/usr/lib/oci-rs/plugins"' "$directory/install.log"
    inside dpkg --verify oci-rs
    inside oci-rs --version | sed 's/^/    /'
    inside bash -c 'source /usr/share/bash-completion/completions/oci-rs && complete -p oci-rs' >/dev/null
    # No service, no user, no directory: nothing but the package's files.
    [ ! -e "$root/var/lib/oci-rs" ] && [ ! -e "$root/run/oci-rs" ] || die "the installation made directories"
    # The volume plugin works under its name, without a configuration.
    inside env DHV_OPERATION=fingerprint /usr/lib/oci-rs/host-volumes/oci-rs-volume fingerprint |
        jq -e '.version | length > 0' >/dev/null
    inside zcat /usr/share/doc/oci-rs/sbom.cdx.json.gz |
        jq -e --arg kind "$kind" '.components | $kind == "dev" or length > 100' >/dev/null
}

start_job() {
    say "Starting an agent with the package's plugin_dir, and a job"
    local port
    port=$(free_port)
    start_registry "$directory/registry" "$port"
    scripts/image.sh "$directory/layout" >/dev/null
    push_image "$directory/layout" busybox demo/web:1.0 "$port"
    image=127.0.0.1:$port/demo/web:1.0
    # With the device plugin: without specs it offers nothing, and does not disturb.
    start_agent "$directory" "$root/usr/lib/oci-rs/plugins-cdi"
    . "$directory/env"
    grep -q 'name=oci-rs-cdi' "$directory/agent.log" || die "the agent did not load the device plugin"
    "$NOMAD" job run -var "image=$image" e2e/jobs/web.nomad.hcl >/dev/null
    alloc=$("$NOMAD" job allocs -json web | jq -r '.[0].ID')
    address=$(curl -fsS "$NOMAD_ADDR/v1/allocation/$alloc" |
        jq -r '.AllocatedResources.Shared.Ports[0] | "\(.HostIP):\(.Value)"')
    pid=$(task_pid)
    the_task_runs
}

task_pid() { OCI_RS_RUN_DIR=$directory/run "$driver" ps --json | jq -r '.[0].pid'; }

# The same process serves the page, and the plugin runs commands in it.
the_task_runs() {
    curl -fsS --max-time 10 --retry 5 --retry-connrefused "http://$address/" | grep -q 'Hello from oci-rs'
    [ "$(task_pid)" = "$pid" ] && [ -d "/proc/$pid" ] || die "the task was replaced: $pid, now $(task_pid)"
    [ "$("$NOMAD" alloc exec -i=false -t=false -task web "$alloc" /bin/sh -c 'echo $GREETING')" = "hello from the job" ]
}

the_plugin_is() {
    local running
    running=$(jq -r .pid "$directory/run/plugins/oci-rs.json")
    # The file itself: both versions may have the same content.
    [ "$(stat -L -c %d:%i "/proc/$running/exe")" = "$(stat -L -c %d:%i "$1")" ]
}

upgrade_under_a_task() {
    say "Upgrading under the running task"
    inside dpkg -i "/packages/$new" >"$directory/upgrade.log" 2>&1 || { cat "$directory/upgrade.log" >&2; return 1; }
    expect "works after the next restart" "$directory/upgrade.log"
    ! the_plugin_is "$root/usr/bin/oci-rs" || die "the plugin has the new file before the restart"
    the_task_runs
    say "Restarting the agent: the new plugin takes the task over"
    end_process "$AGENT_PID"
    [ -d "/proc/$pid" ] || die "the task ended with the agent"
    launch_agent "$directory"
    . "$directory/env"
    wait_for 60 "the new plugin" the_plugin_is "$root/usr/bin/oci-rs"
    wait_for 60 "commands in the task" "$NOMAD" alloc exec -i=false -t=false -task web "$alloc" /bin/true
    the_task_runs
}

remove_under_a_task() {
    say "Removing the package under the running task"
    # The package's scripts look for running tasks in the plugin's directories.
    mkdir -p "$root$directory"
    mount --bind "$directory" "$root$directory"
    mount -t proc proc "$root/proc"
    inside OCI_RS_RUN_DIR="$directory/run" dpkg --remove oci-rs >"$directory/remove.log" 2>&1 ||
        { cat "$directory/remove.log" >&2; return 1; }
    umount "$root/proc" "$root$directory"
    expect "tasks that keep running: 1" "$directory/remove.log"
    expect "these stay: running tasks" "$directory/remove.log"
    [ ! -e "$root/usr/bin/oci-rs" ] && [ ! -e "$root/usr/lib/oci-rs" ] || die "files of the package are left"
    driver=$directory/oci-rs
    the_task_runs
    say "The agent still stops the task"
    "$NOMAD" job stop -detach web >/dev/null
    wait_for 60 "the job to stop" all_stopped
    [ ! -d "/proc/$pid" ] || die "the task still runs"
    inside dpkg --purge oci-rs >/dev/null 2>&1
    [ -d "$directory/data/images" ] || die "the images are gone"
}

rpm_in_a_clean_root() {
    say "Installing, upgrading and removing the .rpm"
    local file
    for file in "$directory"/{old,new}/*.rpm; do
        rpm --root "$root" --dbpath /var/lib/rpm --nodeps -U "$file" >"$directory/rpm.log" 2>&1 ||
            { cat "$directory/rpm.log" >&2; return 1; }
        inside oci-rs --version >/dev/null
    done
    expect "works after the next restart" "$directory/rpm.log"
    rpm --root "$root" --dbpath /var/lib/rpm -V --nodeps oci-rs
    rpm --root "$root" --dbpath /var/lib/rpm -e oci-rs >"$directory/rpm.log" 2>&1
    expect "these stay: running tasks" "$directory/rpm.log"
    [ ! -e "$root/usr/bin/oci-rs" ] && [ ! -e "$root/usr/lib/oci-rs" ] || die "files of the package are left"
}

kind=${1:-x86_64}
if [ "$kind" != dev ]; then scripts/setup.sh demo; scripts/setup.sh clean-debian; fi
a_release_needs_a_clean_tagged_commit
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
say "Making two versions of the packages"
OUT=$directory/old PACKAGE_VERSION=$version~1 scripts/package.sh "$kind"
OUT=$directory/new PACKAGE_VERSION=$version~2 scripts/package.sh "$kind"
old=oci-rs_$version~1_amd64.deb new=oci-rs_$version~2_amd64.deb
driver=$root/usr/bin/oci-rs
clean_debian
a_bare_debian_says_what_is_missing
the_package_is_complete
cp "$driver" "$directory/oci-rs"
start_job
upgrade_under_a_task
remove_under_a_task
stop_agent "$directory"
rpm_in_a_clean_root
left=$(leaks "$directory" "$alloc")
[ -z "$left" ] || { warn "$left"; die "something was left behind"; }
say "passed in $SECONDS s"
