#!/usr/bin/env bash
# off.sh: a build with CUDA off: configures without looking for nvcc, builds, answers on the CPU and says so in one
# line, and refuses `--backend cuda`. usage: off.sh SOURCE_DIR C_COMPILER
set -euo pipefail
work=$(mktemp -d /tmp/duckd-off-XXXXXX)
trap 'rm -rf "$work"' EXIT
fail() {
    echo "FAIL: $*" >&2
    exit 1
}
launcher=()
if command -v ccache >/dev/null; then launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache); fi
cmake -S "$1" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER="$2" -DDUCKD_CUDA=OFF "${launcher[@]}" >"$work/log" 2>&1 ||
    fail "configuring: $(tail -n 20 "$work/log")"
grep -q "CUDA: off" "$work/log" || fail "the configuration does not say that CUDA is off"
ninja -C "$work/build" duckd >"$work/log" 2>&1 || fail "building: $(tail -n 20 "$work/log")"
[ ! -e "$work/build/libduckd-cuda.so" ] || fail "there is a CUDA backend"

duckd=("$work/build/duckd" generate --model "$1/models/duckling" -p "What is the capital of Japan?" --temperature 0)
"${duckd[@]}" >"$work/out" 2>"$work/err" || fail "$(cat "$work/err")"
[ "$(cat "$work/out")" = "The capital of Japan is Tokyo." ] || fail "the answer is: $(cat "$work/out")"
[ "$(grep -c "attention runs on the CPU: no libduckd-cuda.so beside the program: built without CUDA" "$work/err")" -eq 1 ] ||
    fail "the CPU is not named once: $(cat "$work/err")"
if "${duckd[@]}" --backend cuda >"$work/out" 2>"$work/err"; then fail "--backend cuda was taken"; fi
[ "$(cat "$work/err")" = "duckd: backend 'cuda': no libduckd-cuda.so beside the program: built without CUDA" ] ||
    fail "--backend cuda: $(cat "$work/err")"
echo ok
