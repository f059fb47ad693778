#!/usr/bin/env bash
# Runs a node with systemd: Debian in an emulated machine, with Nomad as a unit, and oci-rs from its .deb.
# scripts/vm/node has the cases: what `oci-rs doctor` reads from the unit, and that tasks outlive its restart.
# The .deb has the dev build.
. "$(dirname "$0")/lib.sh"
. "$ROOT/scripts/vm/lib.sh"
. "$ROOT/scripts/package-lib.sh"
need_root "making a clean Debian"
cd "$ROOT"

BOOT_SECONDS=300
INCLUDE=busybox-static,curl,docker-registry,iproute2,iptables,jq,kmod,libdevmapper1.02.1,procps,systemd,systemd-sysv

scripts/setup.sh clean-debian
for file in "$TOOLS/linux-$KERNEL/vmlinuz" "$NOMAD"; do
    [ -e "$file" ] || die "$file is missing: run scripts/setup.sh"
done
REGISTRY_PID=
prepare_machine
work=$directory/work OUT=$directory/packages
mkdir "$work"

# registry: its files are made here, and served by a unit in the machine.
registry() {
    local port
    port=$(free_port)
    mkdir -p "$root/srv"
    start_registry "$root/srv/registry" "$port"
    scripts/image.sh "$work/layout" >/dev/null
    push_image "$work/layout" busybox test/busybox:1 "$port"
    end_process "$REGISTRY_PID" 5
    sed -i "s|$root||" "$root/srv/registry/config.yml"
    image=127.0.0.1:$port/test/busybox:1
}

# unit NAME COMMAND [LINE…]: a unit with the defaults of systemd.
unit() {
    printf '%s\n' '[Service]' "ExecStart=$2" "${@:3}" '[Install]' WantedBy=multi-user.target \
        >"$root/etc/systemd/system/$1.service"
}

say "Packing the dev build"
package_version
# Without debug information, because the plugin is copied into memory at each start.
strip --strip-debug -o "$work/oci-rs" "${OCI_RS_BIN:-$TARGET_DIR/debug/oci-rs}"
OCI_RS_BIN=$work/oci-rs dev_packages
say "Making a clean Debian with systemd"
mmdebstrap --quiet --mode=root --variant=minbase --include="$INCLUDE" --skip=check/empty \
    --dpkgopt='path-exclude=/usr/share/locale/*' "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$root" \
    /etc/apt/sources.list.d/*.sources >"$directory/mmdebstrap.log" 2>&1 ||
    { tail -n 20 "$directory/mmdebstrap.log" >&2; die "mmdebstrap failed"; }
mkdir -p "$root"/{tests,etc/nomad.d}
cp "$OUT"/*.deb "$root/tests/oci-rs.deb"
chroot "$root" dpkg --install /tests/oci-rs.deb >"$directory/install.log" 2>&1 ||
    { cat "$directory/install.log" >&2; die "the package cannot be installed"; }
cp -r "$TOOLS/linux-$KERNEL/modules" "$root/usr/lib/modules"
chroot "$root" depmod "$(ls "$root/usr/lib/modules")"
install -m 755 "$NOMAD" "$root/usr/bin/nomad"
install -m 755 scripts/vm/node "$root/tests/node"
registry
sed "s|@IMAGE@|$image|" scripts/vm/node.job.hcl >"$root/tests/job.hcl"
cp scripts/vm/node.hcl "$root/etc/nomad.d/nomad.hcl"
unit registry "/usr/bin/docker-registry serve /srv/registry/config.yml"
unit nomad "/usr/bin/nomad agent -config /etc/nomad.d"
unit tests /tests/node Type=oneshot
ln -s ../tests.service "$root/etc/systemd/system/multi-user.target.wants/tests.service"
ln -sf /dev/null "$root/etc/systemd/system/docker-registry.service"

machine() {
    exec qemu-system-x86_64 -machine q35,hpet=off -accel tcg,thread=multi -cpu max -smp 2 -m 2048 \
        -nodefaults -no-user-config -no-reboot -display none -nic none -kernel "$TOOLS/linux-$KERNEL/vmlinuz" \
        -append "root=/dev/nvme0n1 rootwait rw console=ttyS0 panic=-1 reboot=t systemd.getty_auto=no \
            systemd.unified_cgroup_hierarchy=1 no_timer_check tsc=reliable audit=0 nokaslr mitigations=off" \
        -drive "file=$directory/disk,if=none,id=disk,format=raw,cache=unsafe" -device nvme,drive=disk,serial=disk \
        -serial "file:$directory/kernel.log" -chardev stdio,id=results,signal=off -serial chardev:results </dev/null
}

run_machine
