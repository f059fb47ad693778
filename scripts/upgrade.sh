#!/usr/bin/env bash
# Tasks that the build of an older commit has started are taken over by this tree's: upgrade.sh [COMMIT], else the commit before
# this tree's. Dependencies are those of the checkout's build folder, so only our own crates are compiled once more.
. "$(dirname "$0")/lib.sh"
need_root "the upgrade test"
cd "$ROOT"

commit=$(git rev-parse --verify --quiet "${1:-HEAD~1}^{commit}") ||
    die "no commit ${1:-before this one} here: a shallow clone lacks it (git fetch --deepen 1)"
folder=$(mktemp -d -t oci-rs-upgrade.XXXXXX)
cleanup() {
    local status=$?
    git worktree remove --force "$folder/tree" 2>/dev/null || true
    rm -rf "$folder"
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

say "building $(git log -1 --format='%h %s' "$commit")"
git worktree add --quiet --detach "$folder/tree" "$commit"
# The folder above this target's own, wherever that is.
export CARGO_TARGET_DIR=${TARGET_DIR%/"$TARGET"}
(cd "$folder/tree" && cargo build --quiet -p oci-rs)
cp "$TARGET_DIR/debug/oci-rs" "$folder/oci-rs"

say "taking its tasks over"
# After the older one, which has put its own file there.
cargo build --quiet -p oci-rs
OCI_RS_PREVIOUS_BIN=$folder/oci-rs OCI_RS_BIN=$TARGET_DIR/debug/oci-rs cargo test --quiet -p oci-rs-tests --test wire -- a_task_of_an_older_build
