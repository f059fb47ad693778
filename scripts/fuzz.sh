#!/usr/bin/env bash
# Fuzzes the parsers of untrusted input: every target of fuzz/ for SECONDS_EACH seconds (60), two at a time, from its
# seeds. An input that makes a target fail is stored in fuzz/found/ and its name is printed. Run the target's binary on
# that file to reproduce the failure. FUZZ_SEED=N repeats a run as far as time allows; without it every run is
# different.
#   fuzz.sh               all targets
#   fuzz.sh layer pax …   only these targets
duration=${SECONDS_EACH:-60}
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

need_root "fuzzing: layers hold devices and owners"
HOST=$(rustc -vV | sed -n 's/^host: //p')
FUZZ_TARGET_DIR=$TARGET_DIR/fuzz
# The usual flags of fuzzing tools: count every edge, and pass comparisons to the fuzzer.
FUZZ_FLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares"
RUSTFLAGS=${FUZZ_FLAGS//$'\n'/ } CARGO_TARGET_DIR=$FUZZ_TARGET_DIR \
    cargo build --quiet --locked --profile fuzz --manifest-path fuzz/Cargo.toml --target "$HOST"

targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(cd fuzz/targets && printf '%s\n' *.rs | sed 's/\.rs$//')
mkdir -p fuzz/found
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

run() {
    local target=$1 status=0 words=()
    [ ! -e "fuzz/words/$target" ] || words=("-dict=fuzz/words/$target")
    mkdir "$work/$target"
    # New inputs are stored in the first directory; the seeds are not changed.
    "$FUZZ_TARGET_DIR/$HOST/fuzz/$target" -seed="${FUZZ_SEED:-0}" -max_total_time="$duration" -timeout=20 \
        -rss_limit_mb=2048 -max_len=65536 -artifact_prefix="fuzz/found/$target-" "${words[@]}" \
        "$work/$target" "fuzz/corpus/$target" >"$work/$target.log" 2>&1 || status=$?
    if [ $status = 0 ]; then
        local result
        result=$(grep -oE '^(Done|DONE).*' "$work/$target.log" | tail -n 1 || true)
        echo "$target: $result, $(ls "$work/$target" | wc -l) new inputs"
    else
        echo "$target: FAILED"
        tail -n 40 "$work/$target.log"
        touch "$work/failed"
    fi
    # A target that failed could not remove these itself.
    local pid
    pid=$(sed -n 's/^==\([0-9]\{1,\}\)==.*/\1/p' "$work/$target.log" | head -n 1)
    [ -z "$pid" ] || rm -rf "/dev/shm/oci-rs-fuzz-$pid" "${TMPDIR:-/tmp}/oci-rs-fuzz-$pid.erofs"
}

for ((at = 0; at < ${#targets[@]}; at += 2)); do
    for target in "${targets[@]:at:2}"; do run "$target" & done
    wait
done
[ ! -e "$work/failed" ] || die "fuzzing found something: see fuzz/found"
