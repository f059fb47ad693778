#!/usr/bin/env bash
# Runs the tests of the image store and of containers with their data on several file systems, each in a file of its
# own, and prints a table of the results:
#   test-filesystems.sh              ext4, xfs, xfs without reflink, btrfs
#   test-filesystems.sh ext4 btrfs   these
# ONLY=word selects cases by name.
. "$(dirname "$0")/lib.sh"
need_root "test-filesystems"
cd "$ROOT"

declare -A MAKE=(
    [ext4]="mkfs.ext4 -q -F" [xfs]="mkfs.xfs -q -f -m reflink=1" [xfs-no-reflink]="mkfs.xfs -q -f -m reflink=0"
    [btrfs]="mkfs.btrfs -q -f"
)
[ $# -gt 0 ] || set -- ext4 xfs xfs-no-reflink btrfs
for kind; do [ -n "${MAKE[$kind]:-}" ] || die "unknown file system $kind; known: ${!MAKE[*]}"; done

work=$(mktemp -d -t oci-rs-fs.XXXXXX)
cleanup() {
    local status=$?
    remove_directory "$work"
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

declare -A TEST
while read -r name file; do TEST[$name]=$file; done < <(built_tests)
[ -n "${TEST[cases]:-}" ] && [ -n "${TEST[containers]:-}" ] || die "the tests were not built"
export OCI_RS_BIN=${OCI_RS_BIN:-$TARGET_DIR/debug/oci-rs}

# run KIND LAYERS PROGRAM DIRECTORY: one line of the table. The tests of a crate run in its directory.
rows=() failed=()
run() {
    local kind=$1 layers=$2 program=$3 directory=$4 status=0 begun=$SECONDS log=$work/$1-$2-$3.log
    (
        cd "$directory"
        [ "$layers" != erofs ] || export OCI_RS_LAYERS=erofs
        TMPDIR=$work/data "${TEST[$program]}" ${ONLY:+"$ONLY"}
    ) >"$log" 2>&1 || status=$?
    [ $status = 0 ] || { failed+=("$kind $layers $program"); tail -n 60 "$log"; }
    rows+=("| $kind | $layers | $program | $([ $status = 0 ] && echo passed || echo FAILED) | $((SECONDS - begun)) s |")
}

for kind; do
    say "$kind"
    truncate -s 8G "$work/image"
    ${MAKE[$kind]} "$work/image"
    mkdir -p "$work/data"
    mount -o loop "$work/image" "$work/data"
    chmod 1777 "$work/data"
    run "$kind" directory cases image-store
    if TMPDIR=$work/data can_mount_erofs; then run "$kind" erofs cases image-store; fi
    run "$kind" both containers runtime
    umount "$work/data"
    rm "$work/image"
done
printf '%s\n' "| file system | form of layers | tests | result | duration |" "|---|---|---|---|---|" "${rows[@]}"
[ ${#failed[@]} = 0 ] || die "failed: ${failed[*]}"
