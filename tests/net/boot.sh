#!/usr/bin/env bash
# boot.sh: the boot service without anybody who boots: the tap has the port's address, dnsmasq is started again when it has
# been killed and is gone when duckd ends; without dnsmasq there is one line that says so.
# shellcheck source=tests/net/lib.sh
. "$(dirname "$0")/lib.sh"
command -v dnsmasq >/dev/null || skip "needs dnsmasq: apt-get install dnsmasq-base"
[ -f "$build/duck/BOOTX64.EFI" ] || skip "needs the firmware's image: GNU-EFI"
make_namespace
bridge 0
cat >"$work/flock" <<END
{"transport": "dpdk", "key_file": "$work/key", "state_dir": "$work/state", "memory_mb": 64, "boot": true, "find_ms": 30000,
 "ports": [{"device": "net_af_packet0,iface=p0", "lcore": 2, "address": "10.21.0.1/24", "ducks": [{"mac": "02:00:00:00:00:01"}]}]}
END
echo '[0]' >"$work/tokens"
duckd() { ip netns exec "$ns" "$@" logits --tokens "$work/tokens" --out "$work/net.f32" --flock "$work/flock" -v; }

if duckd env "PATH=$work" "$build/duckd" 2>"$work/without.log"; then fail "duckd has found ducks where there are none"; fi
grep -q "boot: dnsmasq cannot be started: No such file or directory (apt-get install dnsmasq-base)" "$work/without.log" ||
    fail "without dnsmasq: $(tail -n 2 "$work/without.log")"

duckd "$build/duckd" 2>"$work/net.log" &
pids+=($!)
wait_for "boot: 1 port serves" "$work/net.log"
wait_for "." "$work/state/boot/dnsmasq.pid"
grep -q "inet 10.21.0.1/24" <<<"$(x ip -4 addr show dev duckd0)" || fail "duckd0: $(x ip -4 addr show dev duckd0)"
first=$(cat "$work/state/boot/dnsmasq.pid")
kill -KILL "$first"
wait_for "dnsmasq has ended with status -9" "$work/net.log"
another() { # not the old one's file, and whole
    second=$(cat "$work/state/boot/dnsmasq.pid" 2>/dev/null || true)
    [ -n "$second" ] && [ "$second" != "$first" ]
}
until_true 25 another || fail "dnsmasq is not started again"
kill -0 "$second" || fail "dnsmasq was started again, and is not there"
if wait "${pids[0]}"; then fail "duckd has found ducks where there are none"; fi
grep -q "1 of 1 ducks has not answered" "$work/net.log" || fail "duckd: $(tail -n 2 "$work/net.log")"
if kill -0 "$second" 2>/dev/null; then fail "dnsmasq is left running"; fi
