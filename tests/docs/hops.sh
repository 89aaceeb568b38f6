#!/usr/bin/env bash
# hops.sh: the files and functions that docs/architecture.md names on a token's way exist, each function in its file.
# usage: hops.sh SOURCE_DIR
set -euo pipefail
cd "$1"
hops=0
while IFS='|' read -r _ number files functions _; do
    [[ $number =~ ^\ [0-9]+\ $ ]] || continue
    read -ra paths <<<"$(tr -d '`,' <<<"$files")"
    read -ra names <<<"$(tr -d '`,()' <<<"$functions")"
    for name in "${names[@]}"; do
        grep -qE "^[a-z].*\b$name\(" "${paths[@]}" || { echo "FAIL: hop$number: no $name() in ${paths[*]}" && exit 1; }
    done
    hops=$((hops + 1))
done <docs/architecture.md
[ $hops -ge 20 ] || { echo "FAIL: $hops hops, there should be 20 at least" && exit 1; }
echo "$hops hops"
