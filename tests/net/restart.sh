#!/usr/bin/env bash
# restart.sh: a daemon is killed and comes back: nothing is sent again. A second one is refused while the first works.
# shellcheck source=tests/net/lib.sh
. "$(dirname "$0")/lib.sh"
make_namespace
bridge 0
for i in 1 2 3; do duck 0 $i 64M; done
flock_file flock 1 3

# Another host on the same switch.
veth q0 q0b
x ip link set q0b master br0
sed 's/iface=p0/iface=q0/;s,10.21.0.1/24,10.21.0.2/24,' "$work/flock" >"$work/second"

endless flock
wait_for "model loaded" "$work/net.log"
grep -q "weights: [1-9][0-9]* units sent, 0 were held" "$work/net.log" || fail "the first daemon: $(cat "$work/net.log")"
if timeout 60 ip netns exec "$ns" "$build/duckd" generate -p x -n 1 --flock "$work/second" >/dev/null 2>"$work/second.log"; then
    fail "a second daemon was let in"
fi
grep "is in use: the host 10.21.0.1 holds it" "$work/second.log" || fail "the second daemon: $(cat "$work/second.log")"
kill -9 "$daemon" || fail "the first daemon has ended early: $(tail -n 3 "$work/net.log")"
wait "$daemon" 2>/dev/null || true

compare_text flock -p "hello there" -n 20 --temperature 0
grep "weights: 0 units sent, [1-9][0-9]* were held already" "$work/net.log" || fail "after kill -9: $(cat "$work/net.log")"
compare_text flock -p "hello there" -n 20 --temperature 0
grep -q "weights: 0 units sent" "$work/net.log" || fail "after an orderly end: $(cat "$work/net.log")"

# Other options deal the same slices to the same ducks.
for mtp in 0 1; do
    compare_text flock -p "hello there" -n 20 --temperature 0 --mtp $mtp
    grep "weights: 0 units sent" "$work/net.log" || fail "with --mtp $mtp: $(cat "$work/net.log")"
done

# Killed while weights are sent: the next one goes on about where it was.
rm -r "$work/state"
for i in 1 2 3; do
    kill "${pids[i - 1]}"
    wait "${pids[i - 1]}" || true
    start_duck 0 "$i" 64M
    x tc qdisc add dev "d0_${i}b" root tbf rate 3mbit burst 32kb latency 50ms
done
ip netns exec "$ns" "$build/duckd" generate -p "hello there" -n 5 --flock "$work/flock" -v >"$work/first.txt" 2>"$work/first.log" &
first=$!
pids+=("$first")
until_true 60 test -s "$work/state/weights.manifest" || fail "no manifest: $(tail -n 3 "$work/first.log")"
kill -9 "$first" || fail "the weights were there before they could be: $(tail -n 3 "$work/first.log")"
wait "$first" 2>/dev/null || true
for i in 1 2 3; do x tc qdisc del dev "d0_${i}b" root; done
compare_text flock -p "hello there" -n 20 --temperature 0
grep "weights: [1-9][0-9]* units sent, [1-9][0-9]* were held" "$work/net.log" || fail "killed in the middle of weights: $(cat "$work/net.log")"

# Without its manifest it cannot know, and sends everything.
rm -r "$work/state"
compare_text flock -p "hello there" -n 20 --temperature 0
grep "weights: [1-9][0-9]* units sent, 0 were held" "$work/net.log" || fail "without a manifest: $(cat "$work/net.log")"
echo "ok"
