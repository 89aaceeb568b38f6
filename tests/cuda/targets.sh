#!/usr/bin/env bash
# targets.sh: the CUDA backend has machine code and PTX of every kernel file for sm_90 and sm_120.
# usage: targets.sh LIBRARY
set -euo pipefail
names=$(strings -a "$1")
for target in sm_90 sm_120; do
    code=$(grep -c -- "-arch $target " <<<"$names") || { echo "no machine code for $target" >&2; exit 1; }
    ptx=$(grep -c "^\.target $target" <<<"$names") || { echo "no PTX for $target" >&2; exit 1; }
    echo "$target: machine code of $code files, PTX seen $ptx times"
done
