#!/usr/bin/env bash
# any.sh: places of the file for any duck, `{}`: who has one keeps it, whatever the order in which ducks answer and
# whoever else is there; a flock begins while one is missing, and takes it in when it comes.
# shellcheck source=tests/net/lib.sh
. "$(dirname "$0")/lib.sh"
make_namespace
bridge 0
cat >"$work/flock" <<END
{"transport": "dpdk", "key_file": "$work/key", "state_dir": "$work/state", "memory_mb": 128, "find_ms": 6000, "may_miss": 1,
 "ports": [{"device": "net_af_packet0,iface=p0", "address": "10.21.0.1/24", "ducks": [{"weight": 1}, {"weight": 1}, {"weight": 1}]}]}
END
units() { sed -n 's/.*weights: \([0-9]*\) units sent, \([0-9]*\) were held already/\1 \2/p' "$work/net.log"; }
silent() { kill -STOP "${pids[$1]}"; }
talks() { kill -CONT "${pids[$1]}"; }

# Two of three: the flock begins, and the third gets the place that is left while the others answer.
duck 0 1 64M
duck 0 2 64M
for i in 1 2; do wait_for "ready: port" "$work/duck0_$i.log"; done
endless flock --mtp 0
wait_for "model loaded" "$work/net.log"
grep "1 of 3 ducks has not answered.*begins without" "$work/net.log" || fail "the missing duck was not named"
duck 0 3 64M
pids[2]=${pids[-1]}
wait_for "takes part again" "$work/net.log"
grown "$work/net.txt" 200
same_as_local
[ "$(grep -c "duck dpdk-.: [1-9][0-9]* slices.* [1-9][0-9]* expert reads" "$work/net.log")" -eq 3 ] || fail "who has computed: $(grep slices "$work/net.log")"

# One after the other is deaf when it is looked for, and so comes last: nothing moves.
for late in 0 1 2; do
    silent $late
    (sleep 0.5 && talks $late) &
    net_duckd flock "${endless[@]}" -n 5 >/dev/null
    wait $!
    units | grep "^0 [1-9]" || fail "duck $late came late, and weights have moved: $(units)"
done

# One is missing, and a stranger is there: it gets no place of those that are there.
duck 0 4 64M
wait_for "ready: port" "$work/duck0_4.log"
silent 1
net_duckd flock "${endless[@]}" -n 5 >/dev/null
talks 1
grep -h "duck [0-2] (d0-" "$work/net.log"
grep -q "duck . (d0-4, " "$work/net.log" || fail "nobody has taken the place of the missing duck"
for there in 1 3; do grep -q "duck . (d0-$there, " "$work/net.log" || fail "duck $there has lost its place"; done
[ "$(units | wc -l)" -eq 1 ] || fail "$(units)"
units | awk '{ exit !($1 > 0 && $2 >= 1.9 * $1) }' || fail "more than a third was sent: $(units)"
echo "ok"
