#!/usr/bin/env bash
# weights.sh: weights on their way to a duck take at least 80 % of a link shaped to RATE Mb/s (second argument; 50, so that a busy machine keeps up), the
# best of four times (of more on a busy machine), headers not counted; steps work behind it.
# With RATE "bare" no link is shaped: the rate is compared with that of a DPDK sender without a protocol on the same device, in turn.
# shellcheck source=tests/net/lib.sh
. "$(dirname "$0")/lib.sh"
rate=${2:-50}

# best WHAT: the best load in bench.log, MB/s of what is named behind it.
best() { sed -n "s,.* \([0-9.]*\) MB/s $1.*,\1,p" "$work/bench.log" | sort -g | tail -n 1; }
most() { printf '%s\n' "$@" | sort -g | tail -n 1; }

# The other end of a memif is a fresh one each time: the driver does not survive a sender that leaves at full speed.
memif_duck() {
    if [ ${#pids[@]} -gt 0 ]; then
        kill "${pids[0]}" 2>/dev/null || true
        wait "${pids[0]}" 2>/dev/null || true
    fi
    rm -f "$work/memif" "$work/duck.log"
    "$build/tests/duck-dpdk" "net_memif0,role=server,$memif" 10.21.0.101 "$(cat "$work/key")" 600 >"$work/duck.log" 2>&1 &
    pids=($!)
    wait_for ready "$work/duck.log"
}

# beside NAME DEVICE COMMAND...: the best of five rounds in turn; COMMAND goes in front of both.
beside() {
    local name=$1 device=$2 ours=() bare=() n
    shift 2
    for n in 1 2 3 4 5; do
        [ "$name" != memif ] || memif_duck
        timeout 60 "$@" "$build/bench-net" --flock "$work/flock" --experts 64 --loads 2 --steps 0 >"$work/bench.log" || fail "bench-net ended with $?"
        ours+=("$(best "on the wire")")
        [ "$name" != memif ] || memif_duck
        timeout 60 "$@" "$build/bench-sender" "$device" 02:00:00:00:00:01 10.21.0.101 1 >"$work/bare.log" || fail "bench-sender ended with $?"
        bare+=("$(sed -n 's,.* \([0-9.]*\) MB/s.*,\1,p' "$work/bare.log")")
    done
    awk -v name="$name" -v ours="$(most "${ours[@]}")" -v bare="$(most "${bare[@]}")" \
        'BEGIN { printf "%s: weights %.0f MB/s on the wire, bare %.0f MB/s: %.0f %%\n", name, ours, bare, ours / bare * 100 }'
    echo "  of ${ours[*]} and ${bare[*]}"
}

if [ "$rate" = bare ]; then
    memif_flock false
    beside memif "net_memif0,role=client,$memif" env
fi
make_namespace
bridge 0
duck 0 1 600M
flock_file flock 1 1
if [ "$rate" = bare ]; then
    beside af_packet "net_af_packet0,iface=p0" ip netns exec "$ns"
    exit 0
fi
x tc qdisc add dev d0_1b root tbf rate "${rate}mbit" burst 64k latency 5ms 2>"$work/tc.log" ||
    skip "links cannot be shaped here: $(cat "$work/tc.log")"
share=0
for ((n = 0; n < 5 && share < 80; n++)); do # more on a busy machine, which now and then has time for a whole load
    bench flock --experts $((rate / 12 + 4)) --loads 4 --steps 50
    best=$(best "of weights")
    share=$(awk -v mb="$best" -v rate="$rate" 'BEGIN { printf "%d", mb * 8 / rate * 100 }')
    echo "$best MB/s of weights are $share % of $rate Mb/s"
done
[ "$share" -ge 80 ] || fail "weights take $share % of the link"
