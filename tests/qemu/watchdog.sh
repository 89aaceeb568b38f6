#!/usr/bin/env bash
# watchdog.sh: a duck whose core 0 hangs restarts (here: QEMU ends) by the chipset's watchdog alone, and by another core
# alone; one that works does not. One that runs into an exception reports it and restarts.
# shellcheck source=tests/qemu/lib.sh
. "$(dirname "$0")/lib.sh"
boot core 1 virtio-net-pci 2 "key=$key watchdog_s=2 hang_after_s=1" -global ICH9-LPC.noreboot=true
wait_for core "ready: core"
ended "${pids[-1]}" core
grep -qa "core 0 has not looked at the NIC for 2 s; restarting" "$work/core.log" || fail "core: $(cat "$work/core.log")"

chipset=(-global ICH9-LPC.noreboot=false)
boot tco 2 virtio-net-pci 1 "key=$key watchdog_s=12 hang_after_s=1" "${chipset[@]}"
tco=${pids[-1]}
boot sound 3 virtio-net-pci 1 "key=$key watchdog_s=12" "${chipset[@]}"
sound=${pids[-1]}
wait_for sound "ready: sound"
wait_for tco "ready: tco"
ended "$tco" tco
! grep -qa "restarting" "$work/tco.log" || fail "it was not the chipset: $(cat "$work/tco.log")"
sleep 2
kill -0 "$sound" 2>/dev/null || fail "a duck that works was restarted"

# An exception in the firmware itself: all registers, who called, and a restart.
boot fault 4 virtio-net-pci 2 "key=$key fault_after_s=1"
ended "${pids[-1]}" fault
grep -qa "^\*\*\* core 0: bad opcode (vector 6, error code 0x0) at image+0x[0-9a-f]" "$work/fault.log" || fail "fault: $(cat "$work/fault.log")"
grep -qa "^\*\*\* r13 [0-9a-f]\{16\} r14 " "$work/fault.log" || fail "no registers: $(cat "$work/fault.log")"
[ "$(grep -ac "called from image+0x[0-9a-f]" "$work/fault.log")" -ge 2 ] || fail "no backtrace: $(cat "$work/fault.log")"

flock_file flock 3
timeout 180 "$build/duckd" logits --tokens <(echo '[0]') --out "$work/out.f32" --flock "$work/flock" 2>"$work/duckd.log" ||
    fail "duckd: $(tail -n 3 "$work/duckd.log")"
echo "two ducks hung and restarted, one reported an exception and restarted, one worked on"
