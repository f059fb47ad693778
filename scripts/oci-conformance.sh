#!/usr/bin/env bash
# Runs the validation programs of the OCI runtime specification with runc, crun and the runtime crate, prints a table,
# and compares the results: oci-conformance.sh [quick | PROGRAM...]
# A program that passes with runc and not with ours must be in the list of docs/oci-conformance.md, and a program of the
# list must not pass with ours. Ours must pass at least as many programs as runc.
. "$(dirname "$0")/lib.sh"

need_root "the OCI conformance test"
# Some programs run containers without namespaces of their own. Their mounts and host names must not reach the machine.
if [ -z "${OCI_CONFORMANCE_NAMESPACES:-}" ]; then
    OCI_CONFORMANCE_NAMESPACES=1 exec unshare --mount --uts --ipc --propagation private "$0" "$@"
fi
VERSION=0.9.0
PROGRAMS=$TOOLS/runtime-tools-$VERSION
MODULE=github.com/opencontainers/runtime-tools
# One program of each kind, for CI: with runc and ours alone.
QUICK="create default delete hooks hostname kill linux_masked_paths linux_seccomp linux_sysctl mounts
    process process_capabilities process_rlimits process_user root_readonly_true start state"

# Programs with races of their own: their outcome is neither judged nor counted. killsig sends its signals before the
# container's shell handles them; pidfile kills a process that may have ended.
UNSTEADY="killsig pidfile"

# Builds the validation programs and the program that they run in containers, and copies its root file system.
build_programs() {
    [ -e "$PROGRAMS/rootfs-amd64.tar.gz" ] && return 0
    say "Building the validation programs of runtime-tools $VERSION (once)"
    local source packages work
    work=$(mktemp -d -t oci-rs-programs.XXXXXX)
    cd "$ROOT/e2e/tools/runtime-tools"
    source=$(go list -m -f '{{.Dir}}' "$MODULE")
    # A module that nothing imports is not downloaded by the build.
    [ -n "$source" ] || { go mod download "$MODULE" && source=$(go list -m -f '{{.Dir}}' "$MODULE"); }
    packages=$(cd "$source" && find validation -name '*.go' -not -path '*/util/*' -printf '%h\n' | sort -u)
    # Static, because some run in a container. One at a time: two of the programs contain packages of one name.
    # shellcheck disable=SC2086
    CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o "$work/" $(sed "s|^|$MODULE/|" <<<"$packages") \
        "$MODULE/cmd/runtimetest"
    install -m 644 "$source/rootfs-amd64.tar.gz" "$work/"
    mkdir -p "$TOOLS"
    rm -rf "$PROGRAMS"
    mv "$work" "$PROGRAMS"
}

# result LOG STATUS: pass, fail or skip, from TAP and the exit status. Some programs print no result: they report each
# violation as an error, and nothing if there is none.
result() {
    if [ "$2" != 0 ] || grep -qE '^ *not ok' "$1"; then
        # A skipped program says so in its only line.
        grep -qE '^ *not ok' "$1" || ! grep -qE '^ok 1 # SKIP' "$1" || { echo skip; return; }
        echo fail
    elif ! grep -qE '^ *ok' "$1"; then
        if grep -qF '"error": ' "$1"; then echo fail; else echo pass; fi
    elif [ "$(grep -E '^ *ok' "$1" | grep -vcE '# SKIP')" = 0 ]; then echo skip
    else echo pass; fi
}

# run_program RUNTIME-NAME PROGRAM
run_program() {
    local name=$1 program=$2 status=0
    (cd "$PROGRAMS" && TMPDIR=$directory/tmp RUNTIME=$directory/runtimes/$name timeout 120 "./$program") \
        >"$directory/$name-$program.log" 2>&1 </dev/null || status=$?
    result "$directory/$name-$program.log" "$status" >"$directory/$name-$program.result"
}

runtimes="runc crun ours"
build_programs
mapfile -t programs < <(
    cd "$PROGRAMS" && find . -maxdepth 1 -type f -executable ! -name runtimetest -printf '%f\n' | sort
)
if [ "${1:-}" = quick ]; then
    runtimes="runc ours"
    read -r -a programs <<<"$(tr -s ' \n' ' ' <<<"$QUICK")"
elif [ $# -gt 0 ]; then
    programs=("$@")
fi

# The programs name their cgroups `cgrouptest` and `testdir/cgrouptest`. The runtimes remove the container's own cgroup
# and leave the empty ones above it.
test_cgroups() { find /sys/fs/cgroup -type d \( -name cgrouptest -o -name testdir \) 2>/dev/null | sort; }

# Removes the cgroups that were not there before. A cgroup with a process in it stays, and is named.
remove_test_cgroups() {
    local left
    comm -13 <(printf '%s\n' "$cgroups_before") <(test_cgroups) |
        while read -r left; do
            [ ! -d "$left" ] || find "$left" -depth -type d -exec rmdir {} + || warn "a cgroup is left: $left"
        done
}

cleanup() {
    local status=$?
    remove_test_cgroups
    # KEEP=1 leaves the programs' output.
    if [ -n "${KEEP:-}" ]; then echo "$directory"; else remove_directory "$directory"; fi
    exit "$status"
}

cgroups_before=$(test_cgroups)
directory=$(mktemp -d -t oci-rs-conformance.XXXXXX)
trap cleanup EXIT
trap 'exit 130' INT TERM
mkdir -p "$directory/runtimes" "$directory/tmp"
# Root of a user namespace must be able to reach the bundles.
chmod 755 "$directory"
ours=${OCI_RS_OCI_RUNTIME:-$TARGET_DIR/debug/oci-runtime}
[ -x "$ours" ] || die "missing: $ours (cargo build --workspace builds it)"
for name in $runtimes; do
    case $name in
        ours) command=$ours ;;
        *) command=$(command -v "$name") || die "$name is missing: run scripts/setup.sh" ;;
    esac
    printf '#!/bin/sh\nexec %s --root %s/state-%s "$@"\n' "$command" "$directory" "$name" >"$directory/runtimes/$name"
    chmod 755 "$directory/runtimes/$name"
done

# crun refuses to work on some machines, for example with hybrid cgroups.
if [[ $runtimes = *crun* ]]; then
    run_program crun create
    if [ "$(cat "$directory/crun-create.result")" != pass ]; then
        note "without crun, which refuses this machine: $(grep -oE '"stderr": "[^"]*' "$directory/crun-create.log" |
            grep -v 'specify a ID' | head -n 1 | cut -c 12-)"
        runtimes=${runtimes/crun /}
    fi
fi

# The table of docs/oci-conformance.md has a line for each known failure: | `program` | reason |
known=$(sed -nE 's/^\| `([a-z_]+)` \|.*/\1/p' "$ROOT/docs/oci-conformance.md")
unsteady() { [[ " $UNSTEADY " = *" $1 "* ]]; }
declare -A passed
failed=0 judged=0
# shellcheck disable=SC2086
printf "%-34s$(printf ' %%-5s%.0s' $runtimes)\n" program $runtimes
for program in "${programs[@]}"; do
    line=$(printf '%-34s' "$program")
    for name in $runtimes; do
        run_program "$name" "$program"
        outcome=$(cat "$directory/$name-$program.result")
        [ "$outcome" != pass ] || unsteady "$program" || passed[$name]=$((${passed[$name]:-0} + 1))
        line+=$(printf ' %-5s' "$outcome")
    done
    note=''
    runc=$(cat "$directory/runc-$program.result") own=$(cat "$directory/ours-$program.result")
    unsteady "$program" || judged=$((judged + 1))
    if unsteady "$program"; then
        note=''
    elif grep -qx "$program" <<<"$known"; then
        [ "$own" != pass ] || { note='in the list of known failures, but it passes'; failed=1; }
    elif [ "$runc" = pass ] && [ "$own" != pass ]; then
        note='fails with ours alone'
        failed=1
    fi
    echo "$line $note"
    [ -z "$note" ] || sed 's/^/    /' "$directory/ours-$program.log" | grep -vE '^ *ok' | head -n 30
done
summary=''
for name in $runtimes; do summary+=" $name ${passed[$name]:-0}"; done
echo "passed of $judged:$summary"
[ "${passed[ours]:-0}" -ge "${passed[runc]:-0}" ] || { warn "ours passes fewer programs than runc"; failed=1; }
exit $failed
