#!/usr/bin/env bash
# care.sh: what looks after ducks: a verdict on each, restarts, waking; a duck that works for a host is not disturbed.
# shellcheck source=tests/net/lib.sh
. "$(dirname "$0")/lib.sh"
for i in 1 2 3; do udp_duck $i; done
ducks_ready 1 2 3
cat >"$work/flock" <<EOF
{"transport": "udp", "key_file": "$work/key", "state_dir": "$work/state", "find_ms": 4000,
 "ports": [{"address": "127.0.0.1", "ducks": [{"address": "127.0.0.11:$port"}, {"address": "127.0.0.12:$port"},
                                              {"address": "127.0.0.13:$port", "name": "third"}]}]}
EOF
# care STATUS VERB ...: ends with the status; what it says is in $work/said.
care() {
    local expected=$1 status=0
    shift
    timeout 120 "$build/duckd" flock "$@" --flock "$work/flock" >"$work/said" 2>&1 || status=$?
    [ $status -eq "$expected" ] || fail "flock $*: status $status: $(cat "$work/said")"
}
says() { grep -q -- "$1" "$work/said" || fail "nobody says '$1': $(cat "$work/said")"; }

care 0 doctor
[ "$(grep -c "^ok .*the known answer is right" "$work/said")" -eq 3 ] || fail "doctor: $(cat "$work/said")"
care 0 doctor --expert-format e4m3
[ "$(grep -c "^ok .*the known answer is right in e4m3" "$work/said")" -eq 3 ] || fail "doctor: $(cat "$work/said")"
care 0 doctor third --json
says "right in fp9"
[ "$(grep -c '"verdict": "ok"' "$work/said")" -eq 1 ] || fail "doctor of one: $(cat "$work/said")"
care 0 status third
[ "$(wc -l <"$work/said")" -eq 2 ] || fail "status of one: $(cat "$work/said")"
care 0 status third --json
says '"held_as": "", .*"bytes_held": 0,'
care 1 doctor fourth
says "no duck of .* is called 'fourth'"
care 2 reboot
says "flock reboot needs the names of ducks"
care 2 off
says "flock off needs the names of ducks"
care 2 dance
care 1 wake third
says 'third cannot be woken: the flock.s file gives it no "mac"'

# While a host works with them they are not restarted, not tested, and not disturbed.
serve host.log --flock "$work/flock" --expert-format e4m3
host=${pids[-1]}
ask_ready "$listen" before
care 0 doctor
[ "$(grep -c "in use, so not tested" "$work/said")" -eq 3 ] || fail "doctor of busy ducks: $(cat "$work/said")"
care 0 status --json
[ "$(grep -c '"held_as": "e4m3", .*"bytes_held": [1-9]' "$work/said")" -eq 3 ] || fail "status of busy ducks: $(cat "$work/said")"
care 0 status third
says "0\.[0-9]* e4m3 "
care 1 reboot third
says "third  *is held by 127.0.0.1: not restarted"
care 1 off third
says "third  *is held by 127.0.0.1: not switched off"
ask "$listen" after
[ "$(answer before)" = "$(answer after)" ] || fail "another answer: $(answer before), $(answer after)"
kill -INT "$host"
wait "$host" || fail "the host ended with $?"

care 0 reboot third
says "third  *restarts"
wait_for "asked to reboot" "$work/duck3.log"
wait "${pids[2]}" || fail "duck-linux ended with $?"
care 0 off udp-1
says "udp-1  *switches off"
wait_for "asked to power off" "$work/duck2.log"
wait "${pids[1]}" || fail "duck-linux ended with $?"
kill -0 "${pids[0]}" || fail "a duck has ended that nobody named"
care 1 doctor
says "^MISSING  third  *does not answer"
says "2 of 3 ducks are unwell"
care 1 boot third --wait 1
says 'no "mac"'
echo "ok"
