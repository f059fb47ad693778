#!/usr/bin/env bash
# The build of an older commit starts tasks, and this tree's build takes them over: upgrade.sh [COMMIT]. The default is
# the previous commit. The older build has its own build directory: in a shared one, cargo would confuse the crates of
# the two checkouts, because it distinguishes them only by their path below the workspace. The directory starts as a
# copy of this tree's without our own crates, so that no dependency is compiled twice.
. "$(dirname "$0")/lib.sh"
need_root "the upgrade test"
cd "$ROOT"

BUILD=${TARGET_DIR%/"$TARGET"}
tree=$BUILD/previous
# The checkout may belong to another user.
git() { command git -c safe.directory='*' "$@"; }

commit=$(git rev-parse --verify --quiet "${1:-HEAD~1}^{commit}") ||
    die "the commit ${1:-before this one} is missing: a shallow clone lacks it (git fetch --deepen 1)"
say "building $(git log -1 --format='%h %s' "$commit")"
# Without its own `.git`, git would use the checkout around it. A tree of another clone does not work.
if ! { [ -f "$tree/.git" ] && git -C "$tree" checkout --quiet --force --detach "$commit" 2>/dev/null; }; then
    rm -rf "$tree"
    git worktree prune
    git worktree add --quiet --detach "$tree" "$commit"
fi
# With a test among the targets, cargo selects the features of the step `build`. No dependency is compiled twice.
TARGETS=(--workspace --bin oci-rs --test architecture)
cargo build --quiet "${TARGETS[@]}"
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
# Called from this directory, so that both builds use the same cargo configuration.
CARGO_TARGET_DIR=$BUILD/previous-build cargo build --quiet "${TARGETS[@]}" --manifest-path "$tree/Cargo.toml"

say "taking over its tasks"
OCI_RS_PREVIOUS_BIN=$BUILD/previous-build/$TARGET/debug/oci-rs OCI_RS_BIN=$TARGET_DIR/debug/oci-rs \
    cargo test --quiet --workspace --test wire -- of_an_older_build
