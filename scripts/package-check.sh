#!/usr/bin/env bash
# Shows that the packages are reproducible: builds those of the commit again, in another directory, with another home,
# another cargo home and another umask, and compares the checksums with dist/.
. "$(dirname "$0")/lib.sh"
. "$ROOT/scripts/package-lib.sh"
cd "$ROOT"

[ -z "$(git status --porcelain)" ] || die "the checkout has changes: commit them, because the check builds the commit"
OUT=$(realpath -m "${OUT:-dist}")
package_version
if [ ! -f "$OUT/SHA256SUMS" ] || ! (cd "$OUT" && sha256sum --quiet -c SHA256SUMS && ls ./*"$VERSION"*) >/dev/null; then
    scripts/package.sh
fi

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
        XDG_CACHE_HOME=${TOOLS%/oci-rs/tools} OUT=$work/out "$work/checkout/scripts/package.sh"
)
if ! diff "$OUT/SHA256SUMS" "$work/out/SHA256SUMS"; then
    mkdir -p "$OUT.again"
    cp "$work/out/"* "$OUT.again/"
    die "the builds differ; the second one is in $OUT.again"
fi
say "Both builds are equal: $(wc -l <"$OUT/SHA256SUMS") files"
