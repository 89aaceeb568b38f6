#!/usr/bin/env bash
# wakes.sh: `flock wake` and `flock boot` with the boot service: whoever answers is up, a machine that is awake and does not
# PXE is named apart from one that has not woken; magic packets are on the wire for those two.
# shellcheck source=tests/net/lib.sh
. "$(dirname "$0")/lib.sh"
command -v dnsmasq >/dev/null || skip "needs dnsmasq: apt-get install dnsmasq-base"
command -v tshark >/dev/null || skip "needs tshark: apt-get install tshark"
[ -f "$build/duck/BOOTX64.EFI" ] || skip "needs the firmware's image: GNU-EFI"
make_namespace
bridge 0
duck 0 1 64M
wait_for "ready: port" "$work/duck0_1.log"
veth awake awakeb
x ip link set awakeb master br0
x ip link set awake address 02:00:00:00:00:02
x ip addr add 10.21.0.200/24 dev awake
cat >"$work/flock" <<END
{"transport": "dpdk", "key_file": "$work/key", "state_dir": "$work/state", "memory_mb": 64, "boot": true, "find_ms": 4000,
 "ports": [{"device": "net_af_packet0,iface=p0", "lcore": 2, "address": "10.21.0.1/24", "ducks": [
   {"name": "up", "mac": "02:00:00:00:00:01", "address": "10.21.0.101"}, {"name": "elsewhere", "mac": "02:00:00:00:00:02"},
   {"name": "asleep", "mac": "02:00:00:00:00:03"}]}]}
END
ip netns exec "$ns" tshark -l -i p0b -Y wol -T fields -e wol.mac >"$work/magic" 2>"$work/tshark.log" &
pids+=($!)
wait_for "Capture started" "$work/tshark.log"
x ping -q -i 0.5 -I awake 10.21.0.250 >/dev/null 2>&1 & # nobody has that address: requests of ARP only
pids+=($!)
# care STATUS VERB ...: ends with the status; what it says is in $work/said.
care() {
    local expected=$1 status=0
    shift
    x "$build/duckd" flock "$@" --flock "$work/flock" >"$work/said" 2>&1 || status=$?
    [ $status -eq "$expected" ] || fail "flock $*: status $status: $(cat "$work/said")"
}
says() { grep -q -- "$1" "$work/said" || fail "nobody says '$1': $(cat "$work/said")"; }
care 1 boot --wait 8
says "^up  *up after [0-9.]* s"
says "^elsewhere  *is awake ([0-9]* frames), and has not asked for an address: network boot"
says "^asleep  *has not woken: not a frame from it"
says "2 of 3 ducks have not come up within 8 s"
care 0 boot up --wait 60
care 0 wake asleep
says "^asleep  *is woken, and has not answered yet"
for i in 2 3; do wait_for "02:00:00:00:00:0$i" "$work/magic"; done # tshark may be behind
if [ -f "$work/state/boot/dnsmasq.pid" ] && kill -0 "$(cat "$work/state/boot/dnsmasq.pid")" 2>/dev/null; then fail "dnsmasq is left running"; fi
echo "ok"
