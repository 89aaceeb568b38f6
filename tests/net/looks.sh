#!/usr/bin/env bash
# looks.sh: a duck of one core looks at its NIC every 20 us while it computes large steps of a real-size layer: most of the
# time, by its thread's CPU clock (the rest is caches and interrupts of a shared machine; whole tasks come to 16 %). The best of
# three times at most: what it shares the machine with costs it caches.
# shellcheck source=tests/net/lib.sh
. "$(dirname "$0")/lib.sh"
memif_flock false
share=0
for ((n = 0; n < 3 && share < 60; n++)); do
    rm -f "$work/memif" "$work/duck.log"
    "$build/tests/duck-dpdk" "net_memif0,role=server,$memif" 10.21.0.101 "$(cat "$work/key")" 600 looks >"$work/duck.log" 2>&1 &
    duck=$!
    pids+=("$duck")
    wait_for ready "$work/duck.log"
    timeout 100 "$build/bench-net" --flock "$work/flock" --experts 8 --tokens 32 --steps 10 --lanes 2 || fail "bench-net ended with $?"
    kill "$duck"
    wait "$duck" || fail "the duck: $(cat "$work/duck.log")"
    grep looks "$work/duck.log"
    share=$(sed -n 's/^looks within 20 us: \([0-9]*\).*/\1/p' "$work/duck.log")
done
[ "$share" -ge 60 ] || fail "only $share % of its looks are within 20 us"
echo "ok"
