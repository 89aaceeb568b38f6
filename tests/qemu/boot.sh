#!/usr/bin/env bash
# boot.sh: from power-on to a duck that answers: all cores, right results, clock, NIC, address, text on the screen; a wrong key
# is not answered.
# shellcheck source=tests/qemu/lib.sh
. "$(dirname "$0")/lib.sh"
start=$(date +%s%N)
mkfifo "$work/monitor.in" "$work/monitor.out"
# A CPU that says it is Intel's and real, so that its registers are asked.
boot duck-1 1 virtio-net-pci 4 "key=$key colour=green" -cpu max,hypervisor=off,vendor=GenuineIntel -device VGA -chardev "pipe,id=m,path=$work/monitor" -mon chardev=m
exec 7<>"$work/monitor.in" 8<>"$work/monitor.out"
wait_for duck-1 "DHCP: have an address"
ms=$((($(date +%s%N) - start) / 1000000))
expect() {
    tr -d '\r' <"$work/duck-1.log" >"$work/said"
    grep -q -- "$1" "$work/said" || fail "the log does not say '$1'"
}
expect "cores: 4 of 4 up"
expect "agrees with"
expect "speed: "
expect "NIC: virtio-net, 52:54:00:12:34:56"
expect "option ignored: colour=green"
answer=$("$build/tests/kat-print")
[ "$(grep -c "^core [0-3]: APIC id [0-9]*, known answer $answer$" "$work/said")" -eq 4 ] ||
    fail "not four cores that compute $answer: $(grep "known answer" "$work/said")"

echo "screendump $work/screen.ppm" >&7
shows() { # the picture may not be written to its end yet
    "$build/tests/screen-read" "$work/screen.ppm" >"$work/screen" 2>/dev/null &&
        grep -q "^ready: duck-1, [0-9]* ms after the clock started$" "$work/screen"
}
until_true 30 shows || fail "the screen says: $(cat "$work/screen")"

flock_file flock 1
timeout 180 "$build/duckd" logits --tokens <(echo '[0,5]') --out "$work/out.f32" --flock "$work/flock" -v 2>"$work/duckd.log" ||
    fail "duckd: $(tail -n 3 "$work/duckd.log")"
expect "memory: [0-9]* MB/s read by all cores, 0 bad words"
doctor_says() { # STATUS VERDICT TEXT
    local status=0
    "$build/duckd" flock doctor --flock "$work/flock" >"$work/doctor" 2>&1 || status=$?
    [ "$status" -eq "$1" ] || fail "the doctor ends with $status: $(cat "$work/doctor")"
    shift
    grep -q "^$1  *udp-0  *.*$2" "$work/doctor" || fail "the doctor says: $(cat "$work/doctor")"
}
doctor_says 0 ok "the known answer is right"
(umask 077 && echo ffffffffffffffffffffffffffffffff >"$work/other_key")
sed "s,$work/key,$work/other_key,; s/\"find_ms\": 60000/\"find_ms\": 2000/" "$work/flock" >"$work/wrong"
if timeout 180 "$build/duckd" logits --tokens <(echo '[0,5]') --out "$work/out.f32" --flock "$work/wrong" 2>"$work/wrong.log"; then
    fail "a wrong key was taken"
fi
grep -q "1 of 1 ducks has not answered" "$work/wrong.log" || fail "a wrong key: $(cat "$work/wrong.log")"
doctor_says 1 advice "frames with a wrong tag"
"$build/duckd" flock reboot udp-0 --flock "$work/flock" >"$work/reboot.log" 2>&1 || fail "reboot: $(cat "$work/reboot.log")"
ended "${pids[0]}" duck-1 # -no-reboot
echo "power-on to an address: $ms ms"
