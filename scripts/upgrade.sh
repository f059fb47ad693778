#!/usr/bin/env bash
# Tasks that the build of an older commit has started are taken over by this tree's: upgrade.sh [COMMIT], else the commit before
# this tree's. The older one has a build directory of its own, because cargo tells the crates of two checkouts apart only by their place
# below the workspace: in one directory it takes the one's for the other's. It begins as a copy of this tree's without our own crates, so
# that no dependency is compiled twice.
. "$(dirname "$0")/lib.sh"
need_root "the upgrade test"
cd "$ROOT"

BUILD=${TARGET_DIR%/"$TARGET"}
tree=$BUILD/previous
# The checkout may belong to another user.
git() { command git -c safe.directory='*' "$@"; }

commit=$(git rev-parse --verify --quiet "${1:-HEAD~1}^{commit}") ||
    die "no commit ${1:-before this one} here: a shallow clone lacks it (git fetch --deepen 1)"
say "building $(git log -1 --format='%h %s' "$commit")"
# Without its `.git`, git would take the checkout around it instead; one that another clone left does not work.
if ! { [ -f "$tree/.git" ] && git -C "$tree" checkout --quiet --force --detach "$commit" 2>/dev/null; }; then
    rm -rf "$tree"
    git worktree prune
    git worktree add --quiet --detach "$tree" "$commit"
fi
cargo build --quiet --workspace --bin oci-rs
if [ ! -d "$BUILD/previous-build" ]; then
    seed=$BUILD/previous-build.tmp
    rm -rf "$seed"
    for part in debug "$TARGET/debug"; do
        mkdir -p "$seed/$part"
        cp -a "$BUILD/$part"/{deps,build,.fingerprint} "$seed/$part"
        rm -rf "$seed/$part/.fingerprint"/oci-rs*
    done
    mv "$seed" "$BUILD/previous-build"
fi
# From here, so that cargo sees one configuration.
CARGO_TARGET_DIR=$BUILD/previous-build cargo build --quiet --workspace --bin oci-rs --manifest-path "$tree/Cargo.toml"

say "taking its tasks over"
OCI_RS_PREVIOUS_BIN=$BUILD/previous-build/$TARGET/debug/oci-rs OCI_RS_BIN=$TARGET_DIR/debug/oci-rs \
    cargo test --quiet --workspace --test wire -- tasks_of_an_older_build
