#!/usr/bin/env bash
# Shows that the packages are reproducible: builds those of the commit again, in another directory, with another home,
# another cargo home and another umask, and compares the checksums with dist/.
#   package-check.sh            for x86-64 and aarch64
#   package-check.sh x86_64     for one of them
. "$(dirname "$0")/lib.sh"
. "$ROOT/scripts/package-lib.sh"
cd "$ROOT"

[ -z "$(git status --porcelain)" ] || die "the checkout has changes: commit them, because the check builds the commit"
OUT=$(realpath -m "${OUT:-dist}")
package_version
read -ra architectures <<<"${*:-x86_64 aarch64}"
# Whether dist/ has whole packages of this version.
complete() {
    local arch
    cd "$OUT" 2>/dev/null && sha256sum --quiet -c SHA256SUMS || return
    for arch in "${architectures[@]}"; do [ -f "oci-rs-$VERSION-$arch.tar.gz" ] || return; done
}
(complete) || scripts/package.sh "${architectures[@]}"

# On the disk of the build directory, for hard links to the registry.
mkdir -p target
work=$(mktemp -d "$ROOT/target/again.XXXXXX")
trap 'rm -rf "$work"' EXIT
home=$work/somebody/else
mkdir -p "$home/cargo"
say "Building once more in $work"
git clone --quiet . "$work/checkout"
# The libraries' sources are not fetched again. This directory of cargo has another path.
sources=$(registries | head -n 1)
cp -al "${sources%/src/*}" "$home/cargo/registry" 2>/dev/null || cp -a "${sources%/src/*}" "$home/cargo/registry"
rustup=${RUSTUP_HOME:-$HOME/.rustup}
(
    umask 077
    unset CARGO_TARGET_DIR BUILD
    PATH=$(dirname "$(rustup which cargo)"):$PATH HOME=$home CARGO_HOME=$home/cargo RUSTUP_HOME=$rustup \
        XDG_CACHE_HOME=${TOOLS%/oci-rs/tools} OUT=$work/out "$work/checkout/scripts/package.sh" "${architectures[@]}"
)
# dist/ may have more architectures.
cut -d ' ' -f 3 "$work/out/SHA256SUMS" | grep -wFf - "$OUT/SHA256SUMS" >"$work/expected" || true
if ! diff "$work/expected" "$work/out/SHA256SUMS"; then
    mkdir -p "$OUT.again"
    cp "$work/out/"* "$OUT.again/"
    die "the builds differ; the second one is in $OUT.again"
fi
say "Both builds are equal: $(wc -l <"$work/expected") files"
