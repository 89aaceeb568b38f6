#!/usr/bin/env bash
# overlap.sh: what a step of a real-size layer costs beyond the duck's computing, beside the same with a duck that neither receives
# nor sends while it computes: sessions in turn, over a memif or, with RATE Mb/s as second argument, over a link shaped to that
# both ways (root).
# shellcheck source=tests/net/lib.sh
. "$(dirname "$0")/lib.sh"
rate=${2-}
layer=(--experts 64 --steps 256)
if [ -z "$rate" ]; then
    memif_flock false
    "$build/tests/duck-dpdk" "net_memif0,role=server,$memif" 10.21.0.101 "$(cat "$work/key")" 600 >"$work/duck.log" 2>&1 &
    pids+=($!)
    wait_for ready "$work/duck.log"
    compare() { timeout 300 "$build/bench-net" --flock "$work/flock" "${layer[@]}" --compare "$1" >"$work/bench.log" || fail "bench-net ended with $?"; }
else
    make_namespace
    bridge 0
    duck 0 1 600M
    for i in d0_1 d0_1b; do x tc qdisc add dev $i root tbf rate "${rate}mbit" burst 64k latency 20ms; done
    flock_file flock 1 1
    compare() { bench flock "${layer[@]}" --compare "$1" >"$work/shown"; }
fi
least() { sed -n "s/^  $1 overlap: overhead [-0-9.]* (\([-0-9.]*\)).*/\1/p" "$work/bench.log" | head -n 1; }
saves() {
    compare "$1"
    grep -A2 medians "$work/bench.log"
    awk -v with="$(least with)" -v without="$(least without)" 'BEGIN { exit !(with < without) }'
}
# Beside other processes few steps are undisturbed: of more rounds, more are.
saves "${3-3}" || saves 12 ||
    fail "overlap saves nothing: $(least with) us with it, $(least without) without"
echo "ok"
