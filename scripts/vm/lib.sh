# A virtual machine that qemu emulates, for tests. Sourced after lib.sh. Its first process is scripts/vm/init: it runs
# the suites of the file /suites and writes its messages to a serial line. A script that uses it defines `machine`,
# which replaces itself with qemu: the disk is $directory/disk, the kernel writes to $directory/kernel.log, and the
# messages go to standard output.
# shellcheck shell=bash

# Time from qemu's start to the machine's first message. A boot that hangs is started again; tests are never repeated.
BOOT_SECONDS=60
BOOTS=3
# Time limit for all suites together.
LIMIT_SECONDS=${LIMIT_SECONDS:-7200}

# Makes $directory for the machine, and $root in it for the machine's files. Both are removed at the end.
prepare_machine() {
    directory=$(mktemp -d -t oci-rs-vm.XXXXXX)
    root=$directory/root
    MACHINE=
    failed=()
    trap end_machine EXIT
    trap 'exit 130' INT TERM
}

# Adds the first process, accounts and names, and busybox under the name of each program that is missing.
add_base() {
    local applet
    mkdir -p "$root"/{dev,etc,proc,root,run,sys,tests,tmp,var/tmp}
    install -m755 "$ROOT/scripts/vm/init" "$root/init"
    for applet in $(/bin/busybox --list); do
        [ -n "$(find "$root"/usr/{bin,sbin} -name "$applet")" ] || ln -s busybox "$root/usr/bin/$applet"
    done
    # The kernel calls modprobe at this path. busybox's reads the list that busybox's depmod makes.
    ln -sf ../bin/busybox "$root/usr/sbin/modprobe"
    printf '%s\n' root:x:0:0:root:/root:/bin/sh daemon:x:1:1::/:/bin/false \
        nobody:x:65534:65534::/:/bin/false >"$root/etc/passwd"
    (umask 077 && echo 'root:*:20000::::::' >"$root/etc/shadow")
    ln -s ../run "$root/var/run"
    printf '%s\n' root:x:0: daemon:x:1: tty:x:5: nogroup:x:65534: >"$root/etc/group"
    echo '127.0.0.1 localhost' >"$root/etc/hosts"
    echo "nameserver 127.0.0.1" >"$root/etc/resolv.conf"
}

# add_files PATH…: files of the checkout that tests read beside their sources.
add_files() {
    local path
    for path; do
        mkdir -p "$root$ROOT/$(dirname "$path")"
        cp -r "$ROOT/$path" "$root$ROOT/$path"
    done
}

end_machine() {
    local status=$?
    [ -z "$MACHINE" ] || kill -KILL "$MACHINE" 2>/dev/null || true
    rm -rf "$directory"
    exit "$status"
}

# Starts the machine and waits for its first message. Its output is descriptor 3, its pid is in MACHINE.
boot() {
    local try line
    for ((try = 1; try <= BOOTS; try++)); do
        exec 3< <(machine 2>&1)
        MACHINE=$!
        while IFS= read -r -t $BOOT_SECONDS line <&3; do
            if [[ $line = '::vm up '* ]]; then say "The machine is up: Linux ${line#::vm up }"; return; fi
            echo "$line"
        done
        kill -KILL "$MACHINE" 2>/dev/null || true
        warn "the machine did not come up (try $try of $BOOTS); the end of the kernel's log:"
        tail -n 30 "$directory/kernel.log" >&2 || true
    done
    die "the machine does not come up"
}

# Prints the machine's output until the machine reports its end. Adds failed suites to `failed`.
follow() {
    local line ended=
    while [ $SECONDS -lt "$LIMIT_SECONDS" ] && IFS= read -r -t $((LIMIT_SECONDS - SECONDS)) line <&3; do
        case $line in
            '::vm suite '*) say "suite ${line#::vm suite }" ;;
            '::vm result '*' passed after '*) note "${line#::vm result }" ;;
            '::vm result '*) failed+=("${line#::vm result }"); warn "${line#::vm result }" ;;
            '::vm end') ended=1 ;;
            *) printf '%s\n' "$line" ;;
        esac
    done
    [ -n "$ended" ] || { failed+=("the machine ended early"); tail -n 40 "$directory/kernel.log" >&2; }
}

# Makes the disk from $root, and runs the suites. Fails if one of them fails.
run_machine() {
    truncate -s 4G "$directory/disk"
    mkfs.ext4 -q -d "$root" "$directory/disk"
    rm -rf "$root"
    boot
    follow
    [ ${#failed[@]} = 0 ] || { warn "failed in the virtual machine:"; printf '  %s\n' "${failed[@]}" >&2; exit 1; }
}
