# The steps of scripts/package.sh. They read VERSION, BUILD, OUT and $work. Sourced after lib.sh.
# shellcheck shell=bash

COMPRESS_DEB=xz
COMPRESS_TAR=(gzip -9n)
COMPRESS_RPM=w6.xzdio

# The checkout may belong to another user.
git() { command git -c safe.directory='*' "$@"; }

# Sets VERSION, and exports what builds read: the commit and its time. A commit without a release's tag has a version
# before the release's.
package_version() {
    local version
    version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$ROOT/Cargo.toml" | head -n 1)
    OCI_RS_COMMIT=${OCI_RS_COMMIT:-$(git rev-parse HEAD)$([ -z "$(git status --porcelain)" ] || echo -changed)}
    OCI_RS_COMMIT_TIME=${OCI_RS_COMMIT_TIME:-$(git log -1 --format=%ct)}
    SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$OCI_RS_COMMIT_TIME}
    export OCI_RS_COMMIT OCI_RS_COMMIT_TIME SOURCE_DATE_EPOCH
    if git rev-parse --quiet --verify "refs/tags/v$version" >/dev/null &&
        [ "$(git rev-parse "v$version^{commit}")" = "$OCI_RS_COMMIT" ]; then
        VERSION=$version
    else
        VERSION=$version~$(date -u -d "@$OCI_RS_COMMIT_TIME" +%Y%m%d%H%M%S).${OCI_RS_COMMIT:0:8}
    fi
    VERSION=${PACKAGE_VERSION:-$VERSION}
}

# deb_arch ARCHITECTURE: Debian's name for it.
deb_arch() {
    case $1 in
    x86_64) echo amd64 ;;
    aarch64) echo arm64 ;;
    *) die "unknown architecture $1; there are x86_64 and aarch64" ;;
    esac
}

# built ARCHITECTURE: where its executable is.
built() { echo "$BUILD/$1-unknown-linux-musl/release/oci-rs"; }

# emulated ARCHITECTURE COMMAND…: runs a program of the architecture on this machine.
emulated() {
    if [ "$1" = "$(uname -m)" ]; then "${@:2}"; else "qemu-$1-static" "${@:2}"; fi
}

# Where cargo keeps the sources of the libraries: a directory for each registry.
registries() {
    cargo metadata --locked --format-version 1 |
        jq -r '.packages[] | select(.source) | .manifest_path | sub("/[^/]*/Cargo.toml$"; "")' | sort -u
}

# cross_compiler ARCHITECTURE: exports which compiler and linker cargo uses for it.
cross_compiler() {
    [ "$1" = aarch64 ] || return 0
    # Debian has no cross compiler for musl. The one for glibc must use nothing that only glibc or libgcc has: checked
    # variants of functions, and calls that choose atomic instructions at run time.
    CROSS_CFLAGS="-U_FORTIFY_SOURCE -mno-outline-atomics"
    export CC_aarch64_unknown_linux_musl=aarch64-linux-gnu-gcc CFLAGS_aarch64_unknown_linux_musl=$CROSS_CFLAGS \
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld
}

# build ARCHITECTURE: the release executable, without any path of this machine in it.
build() {
    local target=$1-unknown-linux-musl directory flags=() cflags=""
    # The last matching prefix counts. The name of a registry's directory depends on the registry's address.
    map() { flags+=("--remap-path-prefix=$1=$2") cflags+=" -ffile-prefix-map=$1=$2"; }
    map "$HOME" /home
    while read -r directory; do map "$directory" /crates; done < <(registries)
    map "$ROOT" /oci-rs
    map "$BUILD" /build
    (
        cross_compiler "$1"
        # Unit separators keep paths with spaces whole.
        # Only this variable reaches the target's libraries, and no program that the build runs on this machine.
        export "CFLAGS_${target//-/_}=${CFLAGS:-} ${CROSS_CFLAGS:-}$cflags"
        CARGO_ENCODED_RUSTFLAGS=$(IFS=$'\x1f' && echo -n "${flags[*]}") \
            CARGO_TARGET_DIR=$BUILD cargo build --locked --release -p oci-rs --target "$target"
    )
}

# no_builders_path EXECUTABLE: fails if it contains a path of this machine.
no_builders_path() {
    local path
    for path in "$ROOT" "$BUILD" "$HOME/.cargo" $(registries); do
        ! grep -qaF "$path" "$1" || die "$1 contains the builder's path $path"
    done
}

# packages_inside ARCHITECTURE: those of its executable: name, version, licence and directory in a line each.
packages_inside() {
    local target=$1-unknown-linux-musl
    cargo tree --locked --quiet -p oci-rs -e normal --target "$target" --prefix none --format '{p}' |
        awk '{ print $1, substr($2, 2) }' | sort -u >"$work/inside"
    cargo metadata --locked --format-version 1 --filter-platform "$target" |
        jq -r '.packages[] | select(.source) |
            [.name, .version, .license // "unknown", (.manifest_path | rtrimstr("/Cargo.toml"))] | @tsv' |
        awk -F '\t' 'NR == FNR { inside[$0] = 1; next } ($1 " " $2) in inside' "$work/inside" - | LC_ALL=C sort
}

# licences ARCHITECTURE: the texts for everything in its executable. Equal texts are printed once.
licences() {
    local name version licence directory file hash
    local -A seen=()
    cat "$ROOT/packaging/toolchain-licences.txt"
    printf '\n%s\n' "Libraries in the executable, their licences and the notices that they contain:"
    while IFS=$'\t' read -r name version licence directory; do
        printf '\n==== %s %s: %s\n' "$name" "$version" "$licence"
        while read -r file; do
            hash=$(sha256sum <"$file")
            if [ -n "${seen[$hash]:-}" ]; then
                printf -- '---- %s: the same as %s\n' "${file#"$directory/"}" "${seen[$hash]}"
            else
                seen[$hash]="$name $version ${file#"$directory/"}"
                printf -- '---- %s\n' "${file#"$directory/"}"
                cat "$file"
                echo
            fi
        done < <(find "$directory" -maxdepth 2 -type f \
            \( -iname 'LICENSE*' -o -iname 'LICENCE*' -o -iname 'COPYING*' -o -iname 'NOTICE*' \) ! -name '*.rs' |
            LC_ALL=C sort)
    done < <(packages_inside "$1")
}

# sbom ARCHITECTURE: the bill of materials of its executable in the CycloneDX format. The tool writes it beside each
# crate's manifest.
sbom() {
    local name=sbom-$$ file
    "$TOOLS/bin/cargo-cyclonedx" cyclonedx --quiet --manifest-path "$ROOT/driver/Cargo.toml" --format json \
        --spec-version 1.5 --target "$1-unknown-linux-musl" --override-filename "$name" >&2
    jq --arg root "$ROOT" 'walk(if type == "string" then gsub($root; "/oci-rs") else . end)' "$ROOT/driver/$name.json"
    for file in "$ROOT"/*/"$name.json"; do rm "$file"; done
}

# stage ARCHITECTURE EXECUTABLE DIRECTORY: the installed files, without the leading usr/.
stage() {
    local arch=$1 binary=$2 root=$3 doc=$3/share/doc/oci-rs shell
    local -A completions=([bash]=share/bash-completion/completions/oci-rs [zsh]=share/zsh/vendor-completions/_oci-rs
        [fish]=share/fish/vendor_completions.d/oci-rs.fish)
    mkdir -p "$root"/{bin,lib/oci-rs/{plugins,plugins-cdi,host-volumes},lib/systemd/system/nomad.service.d} \
        "$root"/share/{man/man1,bash-completion/completions,zsh/vendor-completions,fish/vendor_completions.d} \
        "$doc/examples/"{cdi,observability}
    install -m 755 "$binary" "$root/bin/oci-rs"
    # For agents without other plugins. A relative link also works below /usr/local.
    ln -s ../../../bin/oci-rs "$root/lib/oci-rs/plugins/oci-rs"
    # An agent starts each executable of its directories, so the other plugins are in directories of their own.
    ln -s ../../../bin/oci-rs "$root/lib/oci-rs/plugins-cdi/oci-rs"
    ln -s ../../../bin/oci-rs "$root/lib/oci-rs/plugins-cdi/oci-rs-cdi"
    ln -s ../../../bin/oci-rs "$root/lib/oci-rs/host-volumes/oci-rs-volume"
    install -m 755 packaging/package-notes "$root/lib/oci-rs/package-notes"
    install -m 644 packaging/nomad.service.conf "$root/lib/systemd/system/nomad.service.d/50-oci-rs.conf"
    emulated "$arch" "$binary" man "$root/share/man/man1" >/dev/null
    find "$root/share/man" -type f -exec gzip -9n {} +
    for shell in "${!completions[@]}"; do
        emulated "$arch" "$binary" completion "$shell" >"$root/${completions[$shell]}"
    done
    install -m 644 LICENSE README.md CHANGELOG.md "$doc"
    install -m 644 examples/*.hcl "$doc/examples"
    install -m 644 examples/cdi/*.yaml "$doc/examples/cdi"
    install -m 644 examples/observability/* "$doc/examples/observability"
    install -m 644 "$work/licences.txt" "$doc/third-party-licences.txt"
    install -m 644 "$work/sbom.json" "$doc/sbom.cdx.json"
    gzip -9n "$doc/CHANGELOG.md" "$doc/third-party-licences.txt" "$doc/sbom.cdx.json"
    find "$root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
}

# tarball ARCHITECTURE STAGE: to be unpacked below /usr/local.
tarball() {
    local name=oci-rs-$VERSION-$1
    tar -C "$2" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=gnu \
        --transform "flags=r;s|^\.|$name|" -cf - . | "${COMPRESS_TAR[@]}" >"$OUT/$name.tar.gz"
}

# deb ARCHITECTURE STAGE
deb() {
    local root=$work/deb-$1 arch script size
    arch=$(deb_arch "$1")
    # In KiB, and without directories, whose sizes depend on the builder's file system.
    size=$(find "$2" -type f -printf '%s\n' | awk '{ sum += int(($1 + 1023) / 1024) } END { print sum }')
    mkdir -p "$root/DEBIAN" "$root/usr"
    cp -a "$2/." "$root/usr/"
    # Debian's name for the licence.
    mv "$root/usr/share/doc/oci-rs/LICENSE" "$root/usr/share/doc/oci-rs/copyright"
    sed -e "s|@VERSION@|$VERSION|; s|@ARCHITECTURE@|$arch|; s|@SIZE@|$size|" \
        packaging/deb/control.in >"$root/DEBIAN/control"
    for script in postinst prerm postrm; do install -m 755 "packaging/deb/$script" "$root/DEBIAN/$script"; done
    (cd "$root" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum >DEBIAN/md5sums)
    find "$root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group -Z"$COMPRESS_DEB" --build "$root" "$OUT/oci-rs_${VERSION}_$arch.deb" >/dev/null
}

# dev_packages: all packages of the dev build, without debug information, licences, components and compression.
dev_packages() {
    local binary=${OCI_RS_BIN:-$TARGET_DIR/debug/oci-rs}
    [ -x "$binary" ] || die "$binary is missing: run cargo build"
    COMPRESS_DEB=none COMPRESS_TAR=(cat) COMPRESS_RPM=w.ufdio
    mkdir -p "$OUT"
    strip -o "$work/oci-rs" "$binary"
    echo '{"components": []}' >"$work/sbom.json"
    echo none >"$work/licences.txt"
    stage x86_64 "$work/oci-rs" "$work/stage"
    tarball x86_64 "$work/stage"
    deb x86_64 "$work/stage"
    rpm_package x86_64 "$work/stage"
}

# rpm_package ARCHITECTURE STAGE
rpm_package() {
    local top=$work/rpm-$1
    mkdir -p "$top"/{BUILD,BUILDROOT,RPMS,SPECS,root/usr}
    cp -a "$2/." "$top/root/usr/"
    mkdir -p "$top/root/usr/share/zsh/site-functions"
    mv "$top/root/usr/share/zsh/vendor-completions/_oci-rs" "$top/root/usr/share/zsh/site-functions/"
    rmdir "$top/root/usr/share/zsh/vendor-completions"
    sed "s|@VERSION@|$VERSION|" packaging/rpm/oci-rs.spec.in | grep -v '^@FILES@$' >"$top/SPECS/oci-rs.spec"
    (cd "$top/root" && find . \( -type f -o -type l \) -printf '/%P\n' | LC_ALL=C sort) >>"$top/SPECS/oci-rs.spec"
    # The directories that belong to this package alone.
    printf '%%dir %s\n' /usr/lib/oci-rs /usr/lib/oci-rs/{plugins,plugins-cdi,host-volumes} \
        /usr/share/doc/oci-rs /usr/share/doc/oci-rs/examples{,/cdi,/observability} >>"$top/SPECS/oci-rs.spec"
    printf '\n%%install\ncp -a %q/. %%{buildroot}/\n' "$top/root" >>"$top/SPECS/oci-rs.spec"
    rpmbuild --quiet -bb --target "$1-linux" --define "_topdir $top" --define "_buildhost reproducible" \
        --define "use_source_date_epoch_as_buildtime 1" --define "clamp_mtime_to_source_date_epoch 1" \
        --define "__os_install_post %{nil}" --define "_binary_payload $COMPRESS_RPM" --define "_build_id_links none" \
        --define "debug_package %{nil}" --define "_dbpath $top/db" "$top/SPECS/oci-rs.spec" >"$top/log" 2>&1 ||
        { cat "$top/log" >&2; return 1; }
    mv "$top"/RPMS/*/*.rpm "$OUT/oci-rs-$VERSION-1.$1.rpm"
}

# What each package must contain, below usr/.
CONTENTS="bin/oci-rs lib/oci-rs/plugins/oci-rs lib/oci-rs/plugins-cdi/oci-rs lib/oci-rs/plugins-cdi/oci-rs-cdi
    lib/oci-rs/host-volumes/oci-rs-volume lib/oci-rs/package-notes share/doc/oci-rs/examples/cdi/fuse.yaml
    lib/systemd/system/nomad.service.d/50-oci-rs.conf share/bash-completion/completions/oci-rs
    share/zsh/vendor-completions/_oci-rs share/fish/vendor_completions.d/oci-rs.fish share/man/man1/oci-rs.1.gz
    share/man/man1/oci-rs-ps.1.gz share/doc/oci-rs/README.md share/doc/oci-rs/CHANGELOG.md.gz
    share/doc/oci-rs/third-party-licences.txt.gz share/doc/oci-rs/sbom.cdx.json.gz share/doc/oci-rs/examples/plugin.hcl
    share/doc/oci-rs/examples/observability/alerts.yml share/doc/oci-rs/examples/observability/dashboard.json"

# check_layout DEB TARBALL
check_layout() {
    local deb=$1 tarball=$2 file listing missing=()
    listing=$(dpkg-deb --fsys-tarfile "$deb" | tar -t)
    for file in $CONTENTS share/doc/oci-rs/copyright; do
        grep -qxF "./usr/$file" <<<"$listing" || missing+=("$deb: usr/$file")
    done
    # An agent with this directory starts the driver and nothing else.
    [ "$(grep -c '/lib/oci-rs/plugins/.' <<<"$listing")" = 1 ] || missing+=("$deb: one plugin in lib/oci-rs/plugins")
    listing=$(if [ "${COMPRESS_TAR[0]}" = gzip ]; then gzip -dc "$tarball"; else cat "$tarball"; fi | tar -t)
    for file in $CONTENTS share/doc/oci-rs/LICENSE; do
        grep -qE "^oci-rs-[^/]*/$file\$" <<<"$listing" || missing+=("$tarball: $file")
    done
    # Nothing but root's files with modes that do not depend on the builder.
    if dpkg-deb -c "$deb" | grep -vE '^(d|-)rwxr-xr-x root/root|^-rw-r--r-- root/root|^lrwxrwxrwx root/root'; then
        missing+=("$deb: other owners or modes")
    fi
    [ ${#missing[@]} = 0 ] || { printf 'missing: %s\n' "${missing[@]}"; return 1; }
}

# smoke_test ARCHITECTURE EXECUTABLE: it starts, knows its commit, and judges this node.
smoke_test() {
    local version
    version=$(emulated "$1" "$2" --version)
    [[ $version = *"${OCI_RS_COMMIT:0:7}"* ]] || die "$1: --version does not name the commit: $version"
    # Its exit code tells of the node. The report is complete if the executable works.
    emulated "$1" "$2" doctor --json >"$work/doctor.json" || true
    jq -e '.findings | length > 10' "$work/doctor.json" >/dev/null ||
        die "$1: doctor --json: $(head -c 300 "$work/doctor.json")"
    note "$1: $version"
}
