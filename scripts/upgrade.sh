#!/usr/bin/env bash
# Tasks that the build of an older commit has started are taken over by this tree's: upgrade.sh [COMMIT], else the commit before
# this tree's. The older sources stay in the build folder, beside dependencies that both use, so only crates of ours are compiled,
# and the next time only what has changed in them.
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
# From here, so that cargo sees one configuration, and of the whole workspace, so that it chooses the same features.
build() { CARGO_TARGET_DIR=$BUILD cargo build --quiet --workspace --bin oci-rs "$@"; }
build --manifest-path "$tree/Cargo.toml"
cp "$TARGET_DIR/debug/oci-rs" "$BUILD/previous-oci-rs"

say "taking its tasks over"
# After the older one, which has put its own file there.
build
OCI_RS_PREVIOUS_BIN=$BUILD/previous-oci-rs OCI_RS_BIN=$TARGET_DIR/debug/oci-rs \
    cargo test --quiet --workspace --test wire -- tasks_of_an_older_build
