#!/usr/bin/env bash
# return.sh: a duck is killed and started again, another one's cable is pulled and plugged in again, while an answer is
# being made: it goes on without them, they get their weights beside it and take part again; the text is the same.
# shellcheck source=tests/net/lib.sh
. "$(dirname "$0")/lib.sh"
make_namespace
for k in 0 1; do
    bridge $k
    for i in 1 2; do duck $k $i 64M; done
done
flock_file flock 2 2 '"dead_ms": 800,'
log=$work/net.log
twice() { [ "$(grep -c "$1" "$log")" -ge 2 ]; }
endless flock --mtp 0 --expert-format e4m3 # not what zero in a plan means
wait_for "model loaded" "$log"

kill -9 "${pids[1]}"
wait_for "d0-2, 10.21.0.102.*the others take over" "$log"
wait_for "going on without it" "$log"
start_duck 0 2 64M
wait_for "dpdk-1 is there" "$log"
wait_for "dpdk-1 takes part again" "$log"

x ip link set d1_1b down
wait_for "d1-1, 10.21.1.101.*the others take over" "$log"
until_true 60 twice "going on without it" || fail "it did not go on without the second one"
x ip link set d1_1b up
wait_for "dpdk-2 takes part again" "$log"

grown "$work/net.txt" 200
same_as_local
grep -h "take over\|going on\|is there\|again;\|weights:" "$log"
# The one that was started anew lacked everything, the one that was only away nothing.
[ "$(grep -c "weights: [1-9][0-9]* units sent, 0 were held" "$log")" -eq 2 ] || fail "who was sent what: $(grep weights: "$log")"
[ "$(grep -c "weights: 0 units sent, [1-9]" "$log")" -ge 3 ] || fail "who was sent what: $(grep weights: "$log")"
echo "ok"
