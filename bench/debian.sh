#!/usr/bin/env bash
# debian.sh FILE PACKAGE…: makes FILE, a tar archive of a minimal Debian with these packages, from this machine's apt
# sources. It needs mmdebstrap and root. It leaves nothing behind beside FILE.
set -euo pipefail
file=${1:?usage: debian.sh FILE PACKAGE…}
shift
packages=$(IFS=,; echo "$*")
log=$(mktemp)
trap 'rm -f "$log" "$file.new.tar"' EXIT
# Device nodes are not needed: a container has its own. Documentation and translations are not in images.
mmdebstrap --quiet --mode=root --variant=minbase --skip=check/empty,output/dev --include="$packages" \
    --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --essential-hook='mkdir -p "$1/usr/share/man/man1"' \
    "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$file.new.tar" \
    /etc/apt/sources.list.d/*.sources >"$log" 2>&1 || { tail -n 20 "$log" >&2; exit 1; }
mv "$file.new.tar" "$file"
