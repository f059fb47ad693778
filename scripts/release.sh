#!/usr/bin/env bash
# Builds a release from its tag: all packages, their checksums and the notes from the changelog, in dist/.
# Refuses a checkout with changes, a commit without the tag v<version>, and a version without notes.
. "$(dirname "$0")/lib.sh"
. "$ROOT/scripts/package-lib.sh"
cd "$ROOT"

[ -z "$(git status --porcelain)" ] || die "the checkout has changes: commit or remove them"
unset PACKAGE_VERSION OCI_RS_COMMIT OCI_RS_COMMIT_TIME SOURCE_DATE_EPOCH
package_version
[[ $VERSION != *"~"* ]] || die "this commit has no tag v${VERSION%%~*}: git tag v${VERSION%%~*}"
notes=$(awk -v heading="## [$VERSION]" '/^## \[/ { inside = index($0, heading) == 1; next } inside' CHANGELOG.md)
[ -n "${notes//[[:space:]]/}" ] || die "CHANGELOG.md has no notes below \"## [$VERSION]\""
[ "${1:-}" != check ] || { say "ready: version $VERSION"; exit 0; }

OUT=$(realpath -m "${OUT:-dist}")
OUT=$OUT scripts/package.sh
printf '# oci-rs %s\n%s\n' "$VERSION" "$notes" >"$OUT/RELEASE_NOTES.md"
say "Release $VERSION is in $OUT. \`make package-check\` compares it with a second build."
