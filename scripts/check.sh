#!/usr/bin/env bash
# Runs the checks and tests in timed steps and lists the failed steps at the end. Only one cargo runs at a time.
#   check.sh                 all steps
#   check.sh lint test …     only these steps
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

ALL="format lint licences docs build packages test upgrade v2 fuzz e2e oldest parity escapes conformance"
export CARGO_TERM_PROGRESS_WHEN=never
# e2e and conformance run the dev build. The step `build` makes it together with the tests, so nothing compiles twice.
export OCI_RS_BIN=${OCI_RS_BIN:-$TARGET_DIR/debug/oci-rs}
export OCI_RS_NOMAD=$NOMAD OCI_RS_CONSUL=$CONSUL

step_format() {
    cargo fmt --all --check
    cargo fmt --manifest-path fuzz/Cargo.toml --check
    local unformatted script
    unformatted=$(gofmt -l e2e/conformance)
    [ -z "$unformatted" ] || { echo "gofmt would change: $unformatted"; return 1; }
    for script in scripts/*.sh scripts/vm/lib.sh scripts/vm/node .ci/run; do bash -n "$script"; done
    for script in scripts/vm/init packaging/package-notes packaging/deb/p*; do sh -n "$script"; done
    scripts/pictures.sh check
    check_line_length
}

# Lines of code, scripts and documentation have at most 120 characters. rustfmt does not wrap comments and strings.
check_line_length() {
    local long
    long=$(git -c safe.directory='*' ls-files -z '*.rs' '*.md' '*.sh' |
        LC_ALL=C.UTF-8 xargs -0 grep -nE '.{121}' | cut -c1-160) || true
    [ -z "$long" ] || { echo "lines of more than 120 characters:"; echo "$long"; return 1; }
}

step_lint() { cargo clippy --quiet --workspace --all-targets -- -D warnings; }

step_licences() {
    local deny=$TOOLS/bin/cargo-deny db failed=0
    "$deny" --log-level error check bans licenses sources || failed=1
    # fuzz/ has its own lock file. --locked reports here that it is out of date, before fuzzing starts.
    "$deny" --manifest-path fuzz/Cargo.toml --config deny.toml --locked --log-level error \
        check bans licenses sources || failed=1
    # The advisories are in a git repository that some machines cannot reach.
    if db=$(timeout 120 "$deny" fetch db 2>&1); then
        "$deny" --log-level error check --disable-fetch advisories || failed=1
    else
        echo "SKIPPED advisories: their database cannot be fetched here ($(tail -n 1 <<<"$db" | cut -c 1-200))"
    fi
    return $failed
}

step_docs() { RUSTDOCFLAGS="-D warnings" cargo doc --quiet --workspace --no-deps; }

step_build() { cargo build --quiet --workspace --all-targets; }

# Packages of the dev build in a clean Debian. `make test-packages` builds and installs those of a release.
step_packages() {
    need_root "packages"
    scripts/test-packages.sh dev
}

# e2e has its own step.
step_test() {
    cargo test --workspace --exclude oci-rs-e2e --no-fail-fast
    if can_mount_erofs; then
        # Without the cases that choose the form of their layers themselves: they have run. So have those of `lazy`.
        OCI_RS_LAYERS=erofs cargo test --workspace --test cases --no-fail-fast -- \
            --skip partial:: --skip native:: --skip conversion:: --skip serve:: --skip sources:: --skip takeover::
    else
        echo "skipped: the store's tests with EROFS layers: they cannot be mounted from ${TMPDIR:-/tmp}"
    fi
    OCI_RS_USERNS=off cargo test --workspace --test containers
    OCI_RS_USERNS=off cargo test --workspace --test wire -- lifecycle:: mounts:: users:: network:: isolation::
}

# This build takes over tasks of the build of the previous commit. A shallow clone may lack that commit.
step_upgrade() {
    need_root "upgrade"
    local git="git -c safe.directory=*"
    if $git rev-parse --quiet --verify 'HEAD~1^{commit}' >/dev/null || timeout 60 $git fetch --quiet --deepen 1; then
        scripts/upgrade.sh
    else
        echo "SKIPPED upgrade: the previous commit is not in this clone and cannot be fetched"
    fi
}

# Only the cases where cgroup v2 or a newer kernel behaves differently. `make test-v2` runs all cases.
step_v2() {
    local status=0 machine= kernel
    trap '[ -z "$machine" ] || end_process "$machine"; exit 130' INT TERM
    # With AppArmor, most tasks wait for their whole image, and the cases of the newer kernel are about the others.
    for kernel in "6.1 apparmor" "6.18 none"; do
        KERNEL=${kernel% *} LSM=${kernel#* } scripts/test-v2.sh quick &
        machine=$!
        wait "$machine" || status=$?
        machine=
    done
    return $status
}

# v2 runs in a virtual machine and mostly on one processor. With `test` in the list it starts together with `test`, and
# its turn in the list only waits for it: this saves three minutes.
start_v2() {
    v2_log=$(mktemp)
    step_v2 >"$v2_log" 2>&1 &
    v2=$!
}

finish_v2() {
    local status=0
    wait "$v2" || status=$?
    v2=
    cat "$v2_log"
    rm -f "$v2_log"
    return $status
}

# An interrupted run must not leave the virtual machine.
end_v2() { [ -z "$v2" ] || { end_process "$v2"; rm -f "$v2_log"; }; }

# A fixed seed, so that a finding comes from the change. `make fuzz` uses a random seed and takes longer.
step_fuzz() { SECONDS_EACH=${SECONDS_EACH:-10} FUZZ_SEED=${FUZZ_SEED:-1} scripts/fuzz.sh; }

step_e2e() {
    need_root "e2e"
    # The cases build it again without a network; here its modules can be fetched.
    go -C e2e/conformance build -trimpath -o /dev/null ./deviceplugin ./csiplugin
    # --workspace selects the same features as the build before, so that nothing is built again.
    OCI_RS_E2E=1 cargo test --workspace --test nomad -- ${ONLY:+"$ONLY"}
}

# A quick selection of the cases with the oldest supported Nomad. `make e2e-versions` runs all cases with every version.
step_oldest() {
    need_root "oldest"
    OCI_RS_NOMAD=$TOOLS/nomad-$NOMAD_OLDEST OCI_RS_E2E=1 OCI_RS_E2E_CASES=quick \
        cargo test --workspace --test nomad -- ${ONLY:+"$ONLY"}
}

# The differential suite. PARITY=all runs all cases, otherwise a selection.
step_parity() {
    need_root "parity"
    OCI_RS_PARITY=${PARITY:-quick} cargo test --workspace --test parity -- ${ONLY:+"$ONLY"}
    OCI_RS_PARITY=${PARITY:-quick} cargo test --workspace --test switch -- ${ONLY:+"$ONLY"}
}

# Attempts to leave containers of both drivers: most of them, ESCAPES=all, or ESCAPES=record, which writes the results.
step_escapes() {
    need_root "escapes"
    OCI_RS_ESCAPES=${ESCAPES:-quick} cargo test --workspace --test escapes -- --nocapture
}

step_conformance() {
    need_root "conformance"
    scripts/conformance.sh
    scripts/oci-conformance.sh quick
}

# Prints what the failed tests of a step's output said, of Rust's tests and of Go's, and else the end of the output.
told_failures() {
    local found
    found=$(tr -d '\r' <"$1" | awk '
        /^failures:$/ { shown = 1 }
        /^test result:/ { shown = 0 }
        /--- FAIL/ { lines = 12 }
        shown || lines > 0 { print; lines-- }
    ' | head -c 6000)
    [ -n "$found" ] && echo "$found" || tail -n 20 "$1"
}

run_step() {
    local start=$SECONDS status=0 log
    say "$1"
    log=$(mktemp)
    # A subshell, so that `set -e` works in it although its status is tested. tee ends with the step.
    set +e
    if [ "$1" = v2 ] && [ -n "$v2" ]; then finish_v2; else (set -e; "step_$1"); fi > >(tee "$log") 2>&1
    status=$?
    wait $!
    set -e
    [ $status = 0 ] || failures+="$(say "failures of $1"; told_failures "$log")"$'\n'
    rm -f "$log"
    printf '%s %s: %s after %d s\n' "$([ $status = 0 ] && echo "$GREEN✓" || echo "$RED✗")" "$1" \
        "$([ $status = 0 ] && echo passed || echo FAILED)$PLAIN" $((SECONDS - start))
    [ $status = 0 ] || failed+=("$1")
}

failed=()
# What failed tests said. It is repeated at the end, because it is what a reader of a long log looks for.
failures=
[ $# -gt 0 ] || set -- $ALL
for step in "$@"; do
    [[ " $ALL " = *" $step "* ]] || die "unknown step $step; the steps are: $ALL"
done
# These steps run the built driver, so it must be built first.
if [[ " $* " =~ \ (packages|upgrade|v2|e2e|oldest|parity|escapes|conformance)\  ]] && [[ " $* " != *" build "* ]]; then
    set -- build "$@"
fi
v2=
trap end_v2 EXIT
trap 'exit 130' INT TERM
for step in "$@"; do
    [ "$step" != test ] || [[ " $* " != *" test "*" v2 "* ]] || start_v2
    run_step "$step"
done

printf '%s' "$failures"
[ ${#failed[@]} = 0 ] || die "failed: ${failed[*]} (all in $SECONDS s)"
say "all passed in $SECONDS s: $*"
