#!/usr/bin/env bash
# Fuzzes the parsers of strangers' bytes: every target of fuzz/ for SECONDS seconds (60), two at a time, starting from its seeds.
# An input that fools a target is left in fuzz/found/ and its name printed; run that binary on that file to see it again.
# FUZZ_SEED=N repeats a walk as far as time allows; without it every walk is another one.
#   fuzz.sh              all targets          fuzz.sh layer pax …   only those
duration=${SECONDS_EACH:-60}
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

need_root "fuzzing: layers hold devices and owners"
HOST=$(rustc -vV | sed -n 's/^host: //p')
FUZZ_TARGET_DIR=$TARGET_DIR/fuzz
# What the tools of the trade give the compiler: count every edge, and show comparisons to the fuzzer.
FUZZ_FLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
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
    # New inputs go to the first directory; the seeds stay as they are.
    "$FUZZ_TARGET_DIR/$HOST/fuzz/$target" -seed="${FUZZ_SEED:-0}" -max_total_time="$duration" -timeout=20 -rss_limit_mb=2048 -max_len=65536 \
        -artifact_prefix="fuzz/found/$target-" "${words[@]}" "$work/$target" "fuzz/corpus/$target" >"$work/$target.log" 2>&1 || status=$?
    if [ $status = 0 ]; then
        echo "$target: $(grep -oE '^(Done|DONE).*' "$work/$target.log" | tail -n 1), $(ls "$work/$target" | wc -l) new inputs"
    else
        echo "$target: FAILED"
        tail -n 40 "$work/$target.log"
        touch "$work/failed"
    fi
    # What a target that was fooled could not remove itself.
    local pid
    pid=$(sed -n 's/^==\([0-9]\{1,\}\)==.*/\1/p' "$work/$target.log" | head -n 1)
    [ -z "$pid" ] || rm -rf "/dev/shm/oci-rs-fuzz-$pid" "${TMPDIR:-/tmp}/oci-rs-fuzz-$pid.erofs"
}

for ((at = 0; at < ${#targets[@]}; at += 2)); do
    for target in "${targets[@]:at:2}"; do run "$target" & done
    wait
done
[ ! -e "$work/failed" ] || die "fuzzing found something: see fuzz/found"
