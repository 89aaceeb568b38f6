#!/usr/bin/env bash
# several.sh: a flock that begins while two of its four ducks are missing, takes both in when they come, and then loses two others while
# an answer is being made, one after the other: the text is that of local ducks.
# shellcheck source=tests/net/lib.sh
. "$(dirname "$0")/lib.sh"
log=$work/net.log
ducks=
for i in 1 2 3 4; do ducks+="${ducks:+, }{\"address\": \"127.0.0.1$i:$port\"}"; done
echo "{\"transport\": \"udp\", \"key_file\": \"$work/key\", \"state_dir\": \"$work/state\", \"dead_ms\": 800, \"find_ms\": 2500, \"may_miss\": 2,
    \"ports\": [{\"address\": \"127.0.0.1\", \"ducks\": [$ducks]}]}" >"$work/flock"
stop() { # stop I: duck I is lost, and the others go on
    local before
    before=$(grep -c "going on without it" "$log") || true
    goes_on() { [ "$(grep -c "going on without it" "$log")" -gt "$before" ]; }
    kill -9 "${pids[$1]}"
    wait "${pids[$1]}" 2>/dev/null || true
    until_true 60 goes_on || fail "without duck $1: $(tail -n 5 "$log")"
}

udp_duck 1 1
udp_duck 3 3
ducks_ready 1 3
endless flock --mtp 0
wait_for "model loaded" "$log"
grep "2 of 4 ducks have not answered.*begins without" "$log" || fail "the missing ducks were not named"
udp_duck 2 2
udp_duck 4 4
wait_for "udp-1 takes part again" "$log"
wait_for "udp-3 takes part again" "$log"
stop 1
stop 3
grown "$work/net.txt" 200
same_as_local
[ "$(grep -c "duck udp-[13]: [1-9][0-9]* slices.* [1-9][0-9]* expert reads" "$log")" -eq 2 ] || fail "who has computed: $(grep "expert reads" "$log")"
grep -h "take over\|going on\|takes part" "$log"
echo "ok"
