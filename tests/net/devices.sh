#!/usr/bin/env bash
# devices.sh: what a port can be and do: jumbo frames, a tap as device, the tap behind a port (ARP and ping through it while
# the flock works), a link that goes down and up, an lcore that the machine does not have.
# shellcheck source=tests/net/lib.sh
. "$(dirname "$0")/lib.sh"
command -v ping >/dev/null || skip "needs ping: apt-get install iputils-ping"
make_namespace
bridge 0
small=(--hidden 1024 --experts 16)

# Jumbo frames: both ends and the bridge at 9000. A step of 8 tokens and its results are 8 frames with everything, not 38.
x ip link set br0 mtu 9000
veth d0_1 d0_1b
for i in p0 p0b d0_1 d0_1b; do x ip link set "$i" mtu 9000; done
x ip link set d0_1b master br0
ip netns exec "$ns" "$build/duck-linux" --interface d0_1 --address 10.21.0.101 --mac 02:00:00:00:00:01 --key "$work/key" --memory 64M >"$work/duck.log" 2>&1 &
pids+=($!)
port() { # port DEVICE EXTRA: a flock file of one duck on that device
    echo "{\"transport\": \"dpdk\", \"key_file\": \"$work/key\", \"state_dir\": \"$work/state\", \"memory_mb\": 192, \"dead_ms\": 60000, ${3-}
        \"ports\": [{\"device\": \"$1\", \"address\": \"10.21.0.1/24\", ${2-} \"ducks\": [{\"address\": \"10.21.0.101\"}]}]}" >"$work/port"
}
# steps: until all is seen, in the background, $bench. enough: they end, all that began have come.
steps() {
    rm -f "$work/bench.log" # what waits for "steps begin" may be faster than the shell that starts this
    ip netns exec "$ns" timeout 350 "$build/bench-net" --flock "$work/port" "${small[@]}" --lanes 1 --steps 4000000 "$@" \
        >"$work/bench.log" 2>"$work/bench.err" &
    bench=$!
    pids+=("$bench")
}
enough() {
    kill -INT "$bench" || fail "bench-net has ended: $(cat "$work/bench.err")"
    wait "$bench" || fail "bench-net: $(cat "$work/bench.err")"
    grep "1 lane" "$work/bench.log"
}
port "net_af_packet0,iface=p0,framesz=9216,blocksz=36864,framecnt=512" "" '"payload": 8928,'
bench port "${small[@]}" --tokens 8 --steps 50 --lanes 1
frames=$(sed -n 's/^ *\([0-9]*\)[.0-9]* frames.*/\1/p' "$work/bench.log")
[ "$frames" -lt 12 ] || fail "$frames frames a step are not jumbo"
echo "jumbo: $frames frames a step"

# Results too long for the other end of the duck's cable, whose queue says that it is full, for ever: they are lost like on any
# wire, and do not hold up what stands behind them. Steps in one short frame still come through.
veth q0 q0b
x ip link set q0b master br0
sed 's/iface=p0[^"]*/iface=q0/; s,10.21.0.1/24,10.21.0.2/24,; s/"payload": 8928,//' "$work/port" >"$work/other"
resent() { # by the duck, as it tells another host
    x timeout 60 "$build/duckd" flock status --json --flock "$work/other" 2>"$work/status.log" | sed -n 's/.*"resend_served": \([0-9]*\).*/\1/p'
}
answers() { before=$(resent) && [ -n "$before" ]; }
resends() { [ "$(resent)" -gt "$before" ]; }
steps --activation fp8
wait_for "steps begin" "$work/bench.log"
x ip link set d0_1b mtu 1500
until_true 60 answers || fail "the duck is silent: $(cat "$work/status.log")"
until_true 60 resends || fail "the duck answers no more: $(cat "$work/status.log")"
x ip link set d0_1b mtu 9000
enough
x ip link del q0

# An interface of the kernel loses its link, then goes away; the duck's too.
steps
wait_for "steps begin" "$work/bench.log"
x ip link set p0b down
wait_for "port 0: the link is down" "$work/bench.err"
x ip link set p0b up
wait_for "port 0: the link is up again" "$work/bench.err"
enough
x ip link set d0_1 down
wait_for "the interface d0_1 is down" "$work/duck.log"
ticks() { awk '{ print $14 + $15 }' "/proc/${pids[0]}/stat"; }
asleep() {
    local before
    before=$(ticks)
    sleep 0.5
    [ $(($(ticks) - before)) -lt 10 ]
}
until_true 60 asleep || fail "a duck without a link does not sleep"
x ip link set d0_1 up
bench port "${small[@]}" --tokens 8 --steps 50 --lanes 1 >"$work/again"
steps
wait_for "steps begin" "$work/bench.log"
x ip link set d0_1 down # an interface that goes is down first: the kernel may say no more than that
sleep 0.3               # time to take note of that
x ip link del d0_1
wait_for "the interface d0_1 is gone: this duck ends" "$work/duck.log"
status=0
wait "${pids[0]}" || status=$?
[ "$status" -eq 1 ] || fail "a duck whose interface is gone ends with $status"
x ip link del p0
wait_for "port 0: the interface p0 is gone" "$work/bench.err"
kill "$bench" # no step comes any more
wait "$bench" 2>/dev/null || true
veth p0 p0b
x ip link set p0b master br0
duck 0 1 64M

# The tap behind the port, on an lcore far beyond the machine's.
port "net_af_packet0,iface=p0" '"tap": true, "lcore": 100,'
steps
until_true 60 x ip link show duckd0 >"$work/tap.log" 2>&1 || fail "there is no tap"
x ip addr add 10.21.0.1/24 dev duckd0
x ip link set duckd0 up
wait_for "steps begin" "$work/bench.log"
x ping -c 3 -i 0.2 -W 10 10.21.0.101 >"$work/ping.log" || fail "ping through the tap: $(cat "$work/ping.log")"
grep "packets transmitted" "$work/ping.log"
x ip neigh show dev duckd0 | grep 02:00:00:00:00:01 || fail "no ARP through the tap"
enough

# A tap of the kernel as the port's device, a duck on its other side; its link goes down and comes back meanwhile.
port "net_tap0,iface=t0"
steps
until_true 60 x ip link set t0 up 2>"$work/tap.log" || fail "there is no tap"
ip netns exec "$ns" "$build/duck-linux" --interface t0 --address 10.21.0.101 --mac 02:00:00:00:00:02 --key "$work/key" --memory 64M >"$work/duck2.log" 2>&1 &
pids+=($!)
wait_for "steps begin" "$work/bench.log"
x ip link set t0 down
wait_for "the link is down" "$work/bench.err"
x ip link set t0 up
wait_for "the link is up again" "$work/bench.err"
enough
echo "ok"
