#!/usr/bin/env bash
# Builds the release packages: a tarball, .deb and .rpm, the bill of materials, and checksums.
#   package.sh                  for x86-64 and aarch64
#   package.sh x86_64           for one of them
#   package.sh dev              of the dev build, for x86-64: without compression, licences and bill of materials
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

if [ "${1:-}" = dev ]; then
    dev_packages
    check_layout "$OUT"/*.deb "$OUT"/*.tar.gz
    exit 0
fi

read -ra architectures <<<"${*:-x86_64 aarch64}"
for arch in "${architectures[@]}"; do deb_arch "$arch" >/dev/null; done
scripts/setup.sh package "${architectures[@]}"
rm -rf "$OUT"
mkdir -p "$OUT"
note "version $VERSION, commit $OCI_RS_COMMIT"
for arch in "${architectures[@]}"; do
    say "Building for $arch"
    build "$arch"
    binary=$(built "$arch")
    no_builders_path "$binary"
    smoke_test "$arch" "$binary"
    say "Packing for $arch"
    licences "$arch" >"$work/licences.txt"
    sbom "$arch" >"$work/sbom.json"
    cp "$work/sbom.json" "$OUT/oci-rs-$VERSION-$arch.cdx.json"
    stage "$arch" "$binary" "$work/$arch"
    tarball "$arch" "$work/$arch"
    deb "$arch" "$work/$arch"
    rpm_package "$arch" "$work/$arch"
    check_layout "$OUT/"*"$(deb_arch "$arch")".deb "$OUT/"*"$arch"*.tar.gz
done
(cd "$OUT" && sha256sum -- * >"$work/SHA256SUMS" && mv "$work/SHA256SUMS" .)
say "Packages in $OUT:"
(cd "$OUT" && ls -l | awk 'NR > 1 { printf "%12d  %s\n", $5, $NF }')
