#!/usr/bin/env bash
# Runs tests under cgroup v2, in a virtual machine with Debian's kernel. qemu emulates it, so that neither KVM nor a
# host with cgroup v2 is needed. The machine has a disk with the built tests and the programs that they call, and two
# serial lines; one of them transfers the results. It has no network and no access to this machine.
#   test-v2.sh                     all suites; of the jobs on a real agent (nomad) only those that end by themselves
#   test-v2.sh quick               the part that CI runs with this kernel
#   test-v2.sh containers groups   one suite; further words select the cases with a matching name
# KERNEL=6.12 test-v2.sh … runs them with Debian's Linux 6.12 instead of 6.1; there is 6.18 too.
# LSM=selinux test-v2.sh … runs them with SELinux, enforcing, instead of AppArmor; LSM=none without both.
. "$(dirname "$0")/lib.sh"
. "$ROOT/scripts/vm/lib.sh"

SUITES="runtime containers wire chaos nomad conformance"
# Programs of this machine that the tests call. All other programs are busybox.
PROGRAMS="bash chattr cp cryptsetup env install ip mkfs.btrfs mkfs.ext4 mkfs.xfs runc tar touch umoci"
# The C library loads it by its name when a thread ends. cryptsetup derives keys in threads.
LOADED_LIBRARIES=/lib/x86_64-linux-gnu/libgcc_s.so.1
# Further programs for tasks with a network namespace.
NETWORK_PROGRAMS="ip6tables ip6tables-save iptables iptables-save nft"
# Runtimes that tasks name.
RUNTIMES="crun runsc"
# Further programs for the preparation of Nomad's own driver tests.
CONFORMANCE_PROGRAMS="curl docker-registry rm skopeo sort"
# Further programs that a Nomad agent and its cases call.
NOMAD_PROGRAMS="docker-registry script skopeo sort"

# The security module: apparmor, selinux or none.
LSM=${LSM:-apparmor}

# Kernel options that save time in an emulated machine.
FASTER="no_timer_check tsc=reliable rcupdate.rcu_expedited=1 init_on_alloc=0 audit=0 nokaslr mitigations=off"

# Prints the line of /suites that runs a suite; further words select cases.
suite() {
    local name=$1 words="${*:2}"
    case $name in
        runtime) echo "suite runtime /tests/runtime --test-threads=2 $words" ;;
        containers) echo "suite containers /tests/containers $words" ;;
        wire)
            # Without these variables, tests are skipped that this kernel lacks something for.
            local has="OCI_RS_FILE_SERVERS=1 OCI_RS_QUOTAS=1"
            [ "$KERNEL" != 6.18 ] || has="$has OCI_RS_FS_VERITY=1"
            echo "suite wire env $has /tests/wire --test-threads=2 $words"
            ;;
        chaos) echo "suite chaos env CHAOS_LIVES=${CHAOS_LIVES:-40} /tests/chaos --test-threads=1 $words" ;;
        conformance)
            echo "suite conformance env OCI_RS_CONFORMANCE_TESTS=/tests/conformance" \
                "bash $ROOT/scripts/conformance.sh $words"
            ;;
        nomad)
            echo "suite nomad env OCI_RS_E2E=1 OCI_RS_NOMAD=/tests/nomad-agent" \
                "/tests/nomad --test-threads=1 ${words:-batch_}"
            ;;
        *) die "no suite $name; the suites are: $SUITES" ;;
    esac
}

suites() {
    local name
    case ${1:-all} in
        all) for name in $SUITES; do suite "$name"; done ;;
        quick)
            if [ "$KERNEL" = 6.18 ]; then
                # What older kernels do not have: layers as EROFS images, reads that are announced, fs-verity.
                suite wire fs_verity:: lazy_start:: layers::a_native layers::a_damaged layers::layers_mounted
                return
            fi
            suite containers cgroups_ exec_same exec_rights exec_process_limit exec_kill lifecycle_runs \
                files_devices process_rights process_apparmor
            suite wire apparmor:: limits:: end_reasons:: stats::a_stream stats::the_first metrics::the_values \
                metrics::throttling security::requested_devices host_volume_quotas::a_capacity host_volumes::a_larger \
                sized_layer_quotas::a_limit cdi_hooks::the_hooks_of_each host_volume_encryption::an_encrypted_volume_has
            suite nomad batch_out_of_memory
            ;;
        *) suite "$@" ;;
    esac
}

# program FILE: copies a program and its shared libraries to the same paths below $root.
program() {
    local file
    for file in "$1" $(ldd "$1" 2>/dev/null | grep -o '/[^ ]*'); do
        mkdir -p "$root$(dirname "$file")"
        cp -L --remove-destination "$file" "$root$file"
    done
}

# Makes the machine's root file system in $root.
make_root() {
    local name file
    mkdir -p "$root"/usr/{bin,sbin,lib,lib64}
    for name in bin sbin lib lib64; do ln -s "usr/$name" "$root/$name"; done
    cp /bin/busybox "$root/usr/bin/busybox"
    add_base
    for name in $PROGRAMS; do program "$(command -v "$name")"; done
    for file in $LOADED_LIBRARIES; do program "$file"; done
    cp -r "$TOOLS/linux-$KERNEL/modules" "$root/usr/lib/modules"
    mkdir -p "$root/etc/ssl/certs"
    cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
    while read -r name file; do
        # Without debug information, because the plugin is copied into memory at each start.
        if [[ " $SUITES " = *" $name "* ]]; then strip --strip-debug -o "$root/tests/$name" "$file"; fi
    done < <(built_tests)
    add_files tests/fixtures runtime/tests/oci-schema runtime/src/spec/tests/golden
    program "$TOOLS/apparmor_parser"
    mv "$root$TOOLS/apparmor_parser" "$root/usr/sbin/"
    [ "$LSM" != selinux ] || add_policy
    strip --strip-debug -o "$root/tests/oci-rs" "${OCI_RS_BIN:-$TARGET_DIR/debug/oci-rs}"
    if suites "$@" | grep -Eq '^suite (wire|chaos|nomad|conformance) '; then add_networks; fi
    if suites "$@" | grep -Eq '^suite (wire|chaos) '; then
        for name in $RUNTIMES; do program "$(command -v "$name")"; done
    fi
    if suites "$@" | grep -q '^suite wire '; then
        add_file_servers
        add_files examples/observability
    fi
    if suites "$@" | grep -q '^suite nomad '; then add_nomad; fi
    if suites "$@" | grep -q '^suite conformance '; then add_conformance; fi
    # Everything takes ten times as long in an emulated machine.
    {
        echo "export OCI_RS_BIN=/tests/oci-rs OCI_RS_PATIENCE=${OCI_RS_PATIENCE:-10}"
        [ -z "${OCI_RS_USERNS:-}" ] || echo "export OCI_RS_USERNS=$OCI_RS_USERNS"
        suites "$@"
    } >"$root/suites"
}

# Adds the SELinux policy. Its first process loads it.
add_policy() {
    local directory=$root/etc/selinux/oci-rs
    mkdir -p "$directory/contexts"
    echo SELINUXTYPE=oci-rs >"$root/etc/selinux/config"
    printf '%s\n' 'process = "system_u:system_r:container_t:s0"' 'file = "system_u:object_r:container_file_t:s0"' \
        >"$directory/contexts/lxc_contexts"
    {
        cat "$ROOT/scripts/vm/selinux.cil"
        seq -f '(category c%g)' 0 1023
        echo "(categoryorder ($(seq -f 'c%g' -s ' ' 0 1023)))"
    } >"$directory/policy.cil"
    "$TOOLS/secilc" -M true -c 33 -o "$directory/policy" -f /dev/null "$directory/policy.cil"
}

# Adds the programs that make networks.
add_networks() {
    local name
    for name in $NETWORK_PROGRAMS; do program "$(command -v "$name")"; done
    # iptables loads its matches and targets as libraries, by name.
    mkdir -p "$root/usr/lib/x86_64-linux-gnu" "$root$CNI_PATH"
    cp -r /usr/lib/x86_64-linux-gnu/xtables "$root/usr/lib/x86_64-linux-gnu/"
    for name in bridge firewall host-local loopback portmap; do cp "$CNI_PATH/$name" "$root$CNI_PATH/"; done
}

# Adds the tools of the kernel's file servers, for volumes over the network.
add_file_servers() {
    local name file
    mkdir -p "$root/usr/libexec" "$root/usr/lib/x86_64-linux-gnu"
    for name in rpc.nfsd rpc.mountd exportfs ksmbd.tools; do
        LD_LIBRARY_PATH=$TOOLS/file-servers/lib program "$TOOLS/file-servers/$name"
        mv "$root$TOOLS/file-servers/$name" "$root/usr/sbin/"
    done
    for file in "$TOOLS"/file-servers/lib/*; do cp -a "$file" "$root/usr/lib/x86_64-linux-gnu/"; done
    # One program with several names.
    for name in mountd adduser control; do ln -s ksmbd.tools "$root/usr/sbin/ksmbd.$name"; done
    cp "$TOOLS/file-servers/netconfig" "$root/etc/"
    # The NFS server finds its port by its name.
    printf '%s\n' 'nfs 2049/tcp' 'nfs 2049/udp' >"$root/etc/services"
}

# Adds Nomad, and the files of the checkout that e2e reads.
add_nomad() {
    local name
    for name in $NOMAD_PROGRAMS; do program "$(command -v "$name")"; done
    cp "$NOMAD" "$root/tests/nomad-agent"
    mkdir -p "$root$ROOT/e2e" "$root$ROOT/scripts"
    cp -r e2e/{cni,image,jobs} e2e/*.hcl* "$root$ROOT/e2e/"
    cp scripts/{image,lib}.sh "$root$ROOT/scripts/"
}

# Adds Nomad's own driver tests, built on this machine, because the virtual machine has no Go.
add_conformance() {
    local name
    for name in $CONFORMANCE_PROGRAMS; do program "$(command -v "$name")"; done
    (cd e2e/conformance && go test -c -trimpath -o "$root/tests/conformance" .)
    mkdir -p "$root$ROOT/e2e" "$root$ROOT/scripts"
    cp -r e2e/image "$root$ROOT/e2e/"
    cp scripts/{conformance,image,lib}.sh "$root$ROOT/scripts/"
}

# Prints the kernel options for the security module.
security() {
    case $LSM in
        apparmor) echo apparmor=1 security=apparmor ;;
        selinux) echo selinux=1 security=selinux enforcing=1 ;;
        none) echo apparmor=0 selinux=0 ;;
        *) die "no security module $LSM; there are apparmor, selinux and none" ;;
    esac
}

machine() {
    exec qemu-system-x86_64 -machine q35,hpet=off -accel tcg,thread=multi -cpu max -smp 2 -m 2048 \
        -nodefaults -no-user-config -no-reboot -display none -nic none \
        -kernel "$TOOLS/linux-$KERNEL/vmlinuz" \
        -append "root=/dev/nvme0n1 rootwait rw init=/init console=ttyS0 panic=-1 reboot=t $(security) $FASTER" \
        -drive "file=$directory/disk,if=none,id=disk,format=raw,cache=unsafe" -device nvme,drive=disk,serial=disk \
        -serial "file:$directory/kernel.log" -chardev stdio,id=results,signal=off -serial chardev:results </dev/null
}

for file in "linux-$KERNEL/vmlinuz" apparmor_parser file-servers/rpc.nfsd; do
    [ -e "$TOOLS/$file" ] || die "$TOOLS/$file is missing: run KERNEL=$KERNEL scripts/setup.sh"
done
[ "$LSM" != selinux ] || [ -e "$TOOLS/secilc" ] || die "$TOOLS/secilc is missing: run scripts/setup.sh"
command -v qemu-system-x86_64 >/dev/null || die "qemu is missing: run scripts/setup.sh"
security >/dev/null
suites "$@" >/dev/null
prepare_machine

cd "$ROOT"
make_root "$@"
run_machine
