#!/usr/bin/env bash
# Runs the checks and tests by step, timed, and says at the end what failed. One cargo at a time.
#   check.sh                all steps          check.sh lint test …   only those
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

ALL="format lint licences docs build test upgrade v2 fuzz e2e conformance"
export CARGO_TERM_PROGRESS_WHEN=never
# What e2e and conformance run: the dev build, which `build` makes together with the tests, so that nothing compiles twice.
export OCI_RS_BIN=${OCI_RS_BIN:-$TARGET_DIR/debug/oci-rs}
export OCI_RS_NOMAD=$NOMAD OCI_RS_CONSUL=$CONSUL

step_format() {
    cargo fmt --all --check
    cargo fmt --manifest-path fuzz/Cargo.toml --check
    local unformatted
    unformatted=$(gofmt -l e2e/conformance)
    [ -z "$unformatted" ] || { echo "gofmt would change: $unformatted"; return 1; }
    bash -n scripts/*.sh scripts/vm/* .ci/run
}

step_lint() { cargo clippy --quiet --workspace --all-targets -- -D warnings; }

step_licences() {
    local deny=$TOOLS/bin/cargo-deny db failed=0
    "$deny" --log-level error check bans licenses sources || failed=1
    # fuzz/ has a lock of its own; --locked says at once, not when fuzzing starts, that it fell behind the workspace's manifests.
    "$deny" --manifest-path fuzz/Cargo.toml --config deny.toml --locked --log-level error check bans licenses sources || failed=1
    # The advisories come from a git repository, which a machine behind a wall cannot reach.
    if db=$(timeout 120 "$deny" fetch db 2>&1); then
        "$deny" --log-level error check --disable-fetch advisories || failed=1
    else
        echo "SKIPPED advisories: their database cannot be fetched here ($(tail -n 1 <<<"$db" | cut -c 1-200))"
    fi
    return $failed
}

step_docs() { RUSTDOCFLAGS="-D warnings" cargo doc --quiet --workspace --no-deps; }

step_build() { cargo build --quiet --workspace --all-targets; }

# The store's cases once more with layers in images, where they can be mounted from the temporary directory.
images_are_mounted() {
    modprobe -q erofs 2>/dev/null || true
    [ "$(printf '%s\n' 6.12 "$(uname -r)" | sort -V | head -n 1)" = 6.12 ] && grep -qw erofs /proc/filesystems &&
        ! stat -f -c %T "${TMPDIR:-/tmp}" | grep -qE '^(tmpfs|overlayfs)$'
}

# e2e has a step of its own.
step_test() {
    cargo test --workspace --exclude oci-rs-e2e --no-fail-fast
    if images_are_mounted; then
        OCI_RS_LAYERS=erofs cargo test -p oci-rs-image-store --test cases --no-fail-fast
    else
        echo "skipped: the store's cases with layers in images: they cannot be mounted from ${TMPDIR:-/tmp} here"
    fi
}

# Tasks of the build before this one are taken over by this one's. A shallow clone may lack its commit.
step_upgrade() {
    need_root "upgrade"
    local git="git -c safe.directory=*"
    if $git rev-parse --quiet --verify 'HEAD~1^{commit}' >/dev/null || timeout 60 $git fetch --quiet --deepen 1; then
        scripts/upgrade.sh
    else
        echo "SKIPPED upgrade: the commit before this one is not here and cannot be fetched"
    fi
}

# What the kernel does otherwise there; `make test-v2` runs the rest too.
step_v2() { scripts/test-v2.sh quick; }

# The same walk each time, so that what it finds comes from the change; `make fuzz` takes another one each time.
step_fuzz() { FUZZ_SEED=${FUZZ_SEED:-1} scripts/fuzz.sh; }

step_e2e() {
    need_root "e2e"
    # The cases build it too, where no network is: here its modules can be fetched.
    go -C e2e/conformance build -trimpath -o /dev/null ./boxes
    # Of the whole workspace, so that the same features are chosen and nothing is built again.
    OCI_RS_E2E=1 cargo test --workspace --test nomad -- ${ONLY:+"$ONLY"}
}

step_conformance() {
    need_root "conformance"
    scripts/conformance.sh
}

run_step() {
    local start=$SECONDS status=0
    say "$1"
    # A subshell of its own, so that `set -e` holds in it although we look at its status.
    set +e
    (set -e; "step_$1")
    status=$?
    set -e
    printf '%s %s: %s after %d s\n' "$([ $status = 0 ] && echo "$GREEN✓" || echo "$RED✗")" "$1" \
        "$([ $status = 0 ] && echo passed || echo FAILED)$PLAIN" $((SECONDS - start))
    [ $status = 0 ] || failed+=("$1")
}

failed=()
[ $# -gt 0 ] || set -- $ALL
for step in "$@"; do
    [[ " $ALL " = *" $step "* ]] || die "unknown step $step; there are: $ALL"
done
# What they run must be there and up to date, also when only they are asked for.
if [[ " $* " =~ \ (upgrade|v2|e2e|conformance)\  ]] && [[ " $* " != *" build "* ]]; then set -- build "$@"; fi
for step in "$@"; do run_step "$step"; done

[ ${#failed[@]} = 0 ] || die "failed: ${failed[*]} (all in $SECONDS s)"
say "all passed in $SECONDS s: $*"
