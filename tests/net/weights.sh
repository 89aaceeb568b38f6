#!/usr/bin/env bash
# weights.sh: weights on their way to a duck take at least 80 % of a link shaped to RATE Mb/s (second argument; 50, so that a busy machine keeps up), the
# best of four times, headers not counted; steps work behind it.
# shellcheck source=tests/net/lib.sh
. "$(dirname "$0")/lib.sh"
rate=${2:-50}
make_namespace
bridge 0
duck 0 1 200M
x tc qdisc add dev d0_1b root tbf rate "${rate}mbit" burst 64k latency 5ms 2>"$work/tc.log" ||
    skip "links cannot be shaped here: $(cat "$work/tc.log")"
flock_file flock 1 1
bench flock --experts $((rate / 12 + 4)) --loads 4 --steps 50
best=$(sed -n 's,.* s: \([0-9.]*\) MB/s of weights.*,\1,p' "$work/bench.log" | sort -g | tail -n 1)
share=$(awk -v mb="$best" -v rate="$rate" 'BEGIN { printf "%d", mb * 8 / rate * 100 }')
echo "$best MB/s of weights are $share % of $rate Mb/s"
[ "$share" -ge 80 ] || fail "weights take $share % of the link"
