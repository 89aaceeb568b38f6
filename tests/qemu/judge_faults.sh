#!/usr/bin/env bash
# judge_faults.sh: programs that go wrong end the session with a report, never the duck: the next session, with the right
# program, computes what local ducks compute, on weights that stayed where they were. In the end the duck is switched off.
# shellcheck source=tests/qemu/lib.sh
. "$(dirname "$0")/lib.sh"
boot duck-1 1 virtio-net-pci 4 "key=$key" -action reboot=reset
flock_file flock 1
echo '[0,5]' >"$work/tokens"
run() { # FLOCK OUT LOG
    timeout 180 "$build/duckd" logits --tokens "$work/tokens" --out "$work/$2" --flock "$1" -v 2>"$work/$3"
}
run local:1 local.f32 local.log || fail "local: $(tail -n 3 "$work/local.log")"
wait_for duck-1 "DHCP: have an address"

run "$work/flock" good.f32 good.log || fail "before any program fails: $(tail -n 3 "$work/good.log")"

# wrong FAULT WHAT ADDRESS: the host names duck, core and fault; the duck the rest. They are not admitted: the known-answer test is
# the first that a program computes.
wrong() {
    sed "s,{\"transport\",{\"program\": \"$build/tests/faulty-$1.elf\"\, \"transport\"," "$work/flock" >"$work/faulty"
    if run "$work/faulty" bad.f32 "bad-$1.log"; then fail "a program that $2 has computed"; fi
    grep -q "duck-1.*: core [0-3]: $3 (vector $4) at 0x[0-9a-f]*, 0x[0-9a-f]* bytes into program [0-9a-f]\{16\}" \
        "$work/bad-$1.log" || fail "a program that $2: $(cat "$work/bad-$1.log")"
    grep -q "duck-1.*: rax [0-9a-f]* rbx " "$work/bad-$1.log" || fail "no registers of a program that $2: $(cat "$work/bad-$1.log")"
    grep -q "duck-1.*: called from program+0x[0-9a-f]" "$work/bad-$1.log" || fail "no backtrace for the host of a program that $2"
    grep -q "called from program+0x" "$work/duck-1.log" || fail "no backtrace of a program that $2"
    run "$work/flock" good.f32 good.log || fail "after a program that $2: $(tail -n 3 "$work/good.log")"
    cmp "$work/local.f32" "$work/good.f32" || fail "other logits after a program that $2"
    grep -q "weights: 0 units sent" "$work/good.log" || fail "weights were lost with a program that $2"
    [ "$(grep -ac "ready: duck-1" "$work/duck-1.log")" -eq 1 ] || fail "a program that $2 restarted the duck"
}
wrong 1 "divides by zero" "divide error" 0
wrong 2 "writes to weights" "page fault" 0xe
wrong 3 "spins" "does not return" 0x100
wrong 4 "reads the duck's memory" "page fault" 0xe
"$build/duckd" flock off udp-0 --flock "$work/flock" >"$work/off.log" 2>&1 || fail "off: $(cat "$work/off.log")"
ended "${pids[0]}" duck-1 # a restart would not end QEMU here
echo "four programs failed, four sessions after them computed; the duck said:"
grep -a '^\*\*\* the program' "$work/duck-1.log"
