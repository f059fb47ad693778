#!/usr/bin/env bash
# Runs the cases on a real agent with every supported version of Nomad and prints a table of the results:
#   e2e-versions.sh            all cases with all versions
#   e2e-versions.sh 1.8.3 …    with these versions
# ONLY=word selects cases by name, OCI_RS_E2E_CASES=quick the quick ones. The output of each run is in LOGS, by default
# a new directory.
. "$(dirname "$0")/lib.sh"
need_root "e2e-versions"
cd "$ROOT"

[ $# -gt 0 ] || set -- $NOMAD_VERSIONS
"$ROOT/scripts/setup.sh" nomads
LOGS=${LOGS:-$(mktemp -d -t oci-rs-e2e-versions.XXXXXX)}
export OCI_RS_E2E=1
cargo build --quiet --workspace --all-targets
go -C e2e/conformance build -trimpath -o /dev/null ./deviceplugin ./csiplugin

rows=() failed=()
for version; do
    say "Nomad $version (output: $LOGS/$version.log)"
    begun=$SECONDS status=0
    OCI_RS_NOMAD=$TOOLS/nomad-$version cargo test --workspace --test nomad -- ${ONLY:+"$ONLY"} \
        >"$LOGS/$version.log" 2>&1 || status=$?
    result=$(grep '^test result: ' "$LOGS/$version.log" || true)
    count() { grep -oE "[0-9]+ $1" <<<"$result" | cut -d' ' -f1 || true; }
    rows+=("| $version | $(count passed) | $(count ignored) | $(count failed) | $((SECONDS - begun)) s |")
    # The cases that this version cannot pass, and the failed ones.
    grep -E '^test .* \.\.\. (ignored|FAILED)' "$LOGS/$version.log" | sed 's/^/    /' || true
    [ $status = 0 ] || failed+=("$version")
done
printf '%s\n' "| Nomad | passed | lacks a feature | failed | duration |" "|---|---|---|---|---|" "${rows[@]}"
[ ${#failed[@]} = 0 ] || die "failed with Nomad: ${failed[*]}; see $LOGS"
