#!/usr/bin/env bash
# Builds the release packages: a tarball, .deb and .rpm, the bill of materials, and checksums.
#   package.sh          for x86-64
#   package.sh layout   checks the contents of the tarball and the .deb with the dev build; needs no tools
# OUT names the directory of the packages (default: dist), BUILD that of the build. PACKAGE_VERSION replaces the
# version. All times are the commit's, and no path of the builder is left in the executable.
. "$(dirname "$0")/lib.sh"
. "$ROOT/scripts/package-lib.sh"
cd "$ROOT"
umask 022

OUT=$(realpath -m "${OUT:-$ROOT/dist}")
BUILD=$(realpath -m "${BUILD:-${CARGO_TARGET_DIR:-$ROOT/target}/package}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

package_version

if [ "${1:-}" = layout ]; then
    # The check needs neither licences nor compression.
    COMPRESS_DEB=none COMPRESS_TAR=(cat) OUT=$work/out
    mkdir -p "$OUT"
    echo '{}' >"$work/sbom.json"
    echo none >"$work/licences.txt"
    binary=${OCI_RS_BIN:-$TARGET_DIR/debug/oci-rs}
    [ -x "$binary" ] || die "$binary is missing: run cargo build"
    stage "$binary" "$binary" "$work/stage"
    tarball x86_64 "$work/stage"
    deb x86_64 "$work/stage"
    check_layout "$OUT"/*.deb "$OUT"/*.tar.gz
    exit 0
fi

arch=x86_64
scripts/setup.sh package
rm -rf "$OUT"
mkdir -p "$OUT"
note "version $VERSION, commit $OCI_RS_COMMIT"
say "Building for $arch"
build "$arch"
binary=$BUILD/$arch-unknown-linux-musl/release/oci-rs
no_builders_path "$binary"
smoke_test "$arch" "$binary"
say "Packing for $arch"
licences >"$work/licences.txt"
sbom >"$work/sbom.json"
cp "$work/sbom.json" "$OUT/oci-rs-$VERSION-$arch.cdx.json"
stage "$binary" "$binary" "$work/$arch"
tarball "$arch" "$work/$arch"
deb "$arch" "$work/$arch"
rpm_package "$arch" "$work/$arch"
check_layout "$OUT/"*"$(deb_arch "$arch")".deb "$OUT/"*"$arch"*.tar.gz
(cd "$OUT" && sha256sum -- * >"$work/SHA256SUMS" && mv "$work/SHA256SUMS" .)
say "Packages in $OUT:"
(cd "$OUT" && ls -l | awk 'NR > 1 { printf "%12d  %s\n", $5, $NF }')
