#!/usr/bin/env bash
# Pictures of the documentation: each docs/pictures/NAME.svg is drawn from NAME.dot (Debian: graphviz).
#   pictures.sh          draws all of them
#   pictures.sh check    fails if a text has changed since its picture was drawn; needs no graphviz
. "$(dirname "$0")/lib.sh"
cd "$ROOT/docs/pictures"

sum() { sha256sum <"$1" | cut -c 1-64; }

for text in *.dot; do
    picture=${text%.dot}.svg
    mark="<!-- drawn from $text, sha256 $(sum "$text") -->"
    if [ "${1:-draw}" = check ]; then
        grep -qF -- "$mark" "$picture" || die "docs/pictures/$picture is out of date: run make pictures"
        continue
    fi
    command -v dot >/dev/null || die "dot is missing (Debian: graphviz)"
    { dot -Tsvg "$text" && echo "$mark"; } >"$picture"
    say "drew docs/pictures/$picture"
done
