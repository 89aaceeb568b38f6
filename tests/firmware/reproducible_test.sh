#!/usr/bin/env bash
# reproducible_test.sh IMAGE COMPILER: the same source gives the same bytes, elsewhere and later too, of the image and of the
# judge's program beside it, which COMPILER has made.
set -euo pipefail
image=$1
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
copy=$out/elsewhere
mkdir "$copy"
cp -r Makefile.duck CMakeLists.txt duck fp9 "$copy"
make -C "$copy" -s -f Makefile.duck -j2 OUT="$out/again" PROGRAM_CC="$2" >"$out/log" 2>&1 || { cat "$out/log"; exit 1; }
cmp "$image" "$out/again/BOOTX64.EFI"
cmp "$(dirname "$image")/fp9_kernels.elf" "$out/again/fp9_kernels.elf"
sed -i 's/duckd VERSION 0/duckd VERSION 9/' "$copy/CMakeLists.txt" # and other source gives other bytes
make -C "$copy" -s -f Makefile.duck OUT="$out/again" PROGRAM_CC="$2" >"$out/log" 2>&1 || { cat "$out/log"; exit 1; }
if cmp -s "$image" "$out/again/BOOTX64.EFI"; then
    echo "the version is not in the image" >&2
    exit 1
fi
echo "$(stat -c %s "$image") bytes and $(stat -c %s "$(dirname "$image")/fp9_kernels.elf"), the same again"
