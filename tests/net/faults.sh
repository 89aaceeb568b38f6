#!/usr/bin/env bash
# faults.sh: as clean.sh, over a wire that delays all frames by 0 to 2 ms, loses 1 %, repeats 1 % and lets 5 % go out of their order, both
# ways, and loses whole broadcasts; one duck is stopped for 300 ms, twice.
# shellcheck source=tests/net/lib.sh
. "$(dirname "$0")/lib.sh"
make_namespace
for k in 0 1; do
    bridge $k apart
    veth "w$k" "w${k}b"
    x ip link set "w${k}b" master "br$k"
    for i in 1 2; do duck $k $i 64M; done
done
ip netns exec "$ns" "$build/tests/wire-faults" 7 0.01 0.01 0.05 2000 0.02 p0b w0 p1b w1 >"$work/wire.log" 2>&1 &
wire=$!
pids+=("$wire")
flock_file flock 2 2
compare_logits flock --wire-activation bf16
stops() {
    for _ in 1 2; do
        kill -STOP "${pids[1]}"
        sleep 0.3
        kill -CONT "${pids[1]}"
        sleep 0.3
    done
}
amid "$work/net.txt" stops
compare_text flock -p "hello there" -n 200 --ignore-eos --temperature 0
[ "$(counter "$work/net.log" "asked again")" -gt 0 ] || fail "nothing was asked for again"
wait $!
kill "$wire"
wait "$wire" || true
cat "$work/wire.log"
# What was drawn: of thousands of frames, so far from these bounds; what goes astray overtakes only where others queue.
awk '{ n = $1; lost = $3; twice = $5; overtook = $7; late = $14; us = $17; broadcasts = $10 }
    END { exit !(n > 2000 && lost > n * 0.005 && twice > n * 0.005 && overtook > n * 0.01 && broadcasts > 0 && late > n * 0.9 && us >= 900) }' "$work/wire.log" ||
    fail "the wire was too good"
echo "ok"
