#!/usr/bin/env bash
# Runs tests on aarch64, in a virtual machine with Debian's kernel for it, under cgroup v2. qemu emulates the machine.
# Its files are Debian's packages, unpacked, and the tests that are cross-built here. The executable of the packages
# starts there too, if `make package` has made it.
#   test-aarch64.sh                all suites
#   test-aarch64.sh exec_ files_   only the cases of containers with a matching name
. "$(dirname "$0")/lib.sh"
. "$ROOT/scripts/vm/lib.sh"
. "$ROOT/scripts/package-lib.sh"
need_root "unpacking Debian's packages for aarch64"
cd "$ROOT"

AARCH64=aarch64-unknown-linux-musl
PACKAGES=linux-image-cloud-arm64,bash,btrfs-progs,busybox-static,coreutils,e2fsprogs,iproute2,tar,xfsprogs
# Unit tests of what depends on the processor: system calls, the layout of the kernel's structures, ELF files.
UNITS="runtime seccomp layer host"

scripts/setup.sh aarch64
say "Building the tests for aarch64"
cross_compiler aarch64
tests=$(cargo test --quiet --no-run --message-format=json --target "$AARCH64" -p oci-rs-runtime -p oci-rs-seccomp \
    -p oci-rs-layer -p oci-rs-host | jq -r 'select(.profile.test and .executable) | "\(.target.name) \(.executable)"')
prepare_machine
say "Unpacking Debian for aarch64"
mmdebstrap --quiet --mode=root --variant=extract --architectures=arm64 --include="$PACKAGES" \
    --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
    "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$root" /etc/apt/sources.list.d/*.sources \
    >"$directory/mmdebstrap.log" 2>&1 || { tail -n 20 "$directory/mmdebstrap.log" >&2; die "mmdebstrap failed"; }
mv "$root"/boot/vmlinuz-* "$directory/vmlinuz"
find "$root/lib/modules" -name '*.ko.xz' -exec xz -d {} +
busybox depmod -b "$root" "$(ls "$root/lib/modules")"
add_base
add_files runtime/tests/oci-schema runtime/src/spec/tests/golden
while read -r name file; do
    aarch64-linux-gnu-strip --strip-debug -o "$root/tests/$name" "$file"
done <<<"$tests"
{
    echo "export OCI_RS_PATIENCE=${OCI_RS_PATIENCE:-10}"
    if [ $# = 0 ]; then
        for name in $UNITS; do echo "suite $name /tests/$name --test-threads=2"; done
    fi
    echo "suite containers /tests/containers $*"
} >"$root/suites"
binary=$(BUILD=${CARGO_TARGET_DIR:-$ROOT/target}/package built aarch64)
if [ -x "$binary" ]; then
    cp "$binary" "$root/tests/oci-rs"
    echo "suite executable /tests/oci-rs --version" >>"$root/suites"
fi

machine() {
    exec qemu-system-aarch64 -machine virt -accel tcg,thread=multi -cpu max,pauth-impdef=on -smp 2 -m 2048 \
        -nodefaults -no-user-config -no-reboot -display none -nic none -kernel "$directory/vmlinuz" \
        -append "root=/dev/nvme0n1 rootwait rw init=/init console=ttyAMA0 panic=-1 audit=0 nokaslr mitigations=off" \
        -drive "file=$directory/disk,if=none,id=disk,format=raw,cache=unsafe" -device nvme,drive=disk,serial=disk \
        -serial "file:$directory/kernel.log" -chardev stdio,id=results,signal=off \
        -device pci-serial,chardev=results </dev/null
}

run_machine
