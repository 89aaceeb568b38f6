#!/usr/bin/env bash
# starting.sh: a duck dies while the flock's weights are sent at the start: the others take over its slices and the start goes on; if
# their memory cannot hold them, it ends with one line that says so.
# shellcheck source=tests/net/lib.sh
. "$(dirname "$0")/lib.sh"
make_namespace
bridge 0
for n in 1 2 3; do duck 0 $n 64M; done
flock_file flock 1 3 '"dead_ms": 800,'
sed 's/"weight": 1/&, "memory_gb": 0.01/g' "$work/flock" >"$work/small"
generation=(generate -p "hello there" -n 20 --temperature 0)

# begin FLOCK: a daemon in the middle of its weights, $!
begin() {
    rm -rf "$work/state"
    for n in 1 2 3; do
        x tc qdisc add dev "d0_${n}b" root tbf rate 3mbit burst 32kb latency 50ms 2>"$work/tc.log" ||
            skip "links cannot be shaped here: $(cat "$work/tc.log")"
    done
    : >"$work/net.log" # before anybody looks for what only this daemon will say
    ip netns exec "$ns" "$build/duckd" "${generation[@]}" --flock "$work/$1" -v >"$work/net.txt" 2>"$work/net.log" &
    pids+=($!)
    wait_for "^loading experts" "$work/net.log"
}
# kill_duck PID: and the others' links are quick from then on.
kill_duck() {
    kill -9 "$1"
    wait "$1" 2>/dev/null || true
    for n in 1 2 3; do x tc qdisc del dev "d0_${n}b" root; done
}

begin flock
daemon=$!
kill_duck "${pids[1]}"
wait "$daemon" || fail "the start: $(tail -n 3 "$work/net.log")"
grep "d0-2, 10.21.0.102.* has not answered for .*the others take over its slices" "$work/net.log" || fail "the lost duck: $(cat "$work/net.log")"
grep "going on without it" "$work/net.log" || fail "the others: $(cat "$work/net.log")"
[ "$(grep -c "duck dpdk-[02]: [1-9][0-9]* slices.* [1-9][0-9]* expert reads" "$work/net.log")" -eq 2 ] ||
    fail "who has computed: $(grep "expert reads" "$work/net.log")"
local_duckd "${generation[@]}" >"$work/local.txt"
cmp "$work/local.txt" "$work/net.txt" || fail "the text differs from that of local ducks"

start_duck 0 2 64M
begin small
daemon=$!
kill_duck "${pids[-2]}"
if wait "$daemon"; then fail "20 MB held the model"; fi
grep "^duckd: .*d0-2, 10.21.0.102.* has not answered for .*1 of 3 ducks lost.*MB of duck memory" "$work/net.log" || fail "what was said: $(cat "$work/net.log")"
[ "$(grep -c "^duckd: " "$work/net.log")" -eq 1 ] || fail "not one line: $(cat "$work/net.log")"
echo "ok"
