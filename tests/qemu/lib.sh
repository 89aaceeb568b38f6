# shellcheck shell=bash
# lib.sh: what the QEMU tests share beside tests/lib.sh.
#
# Guests have QEMU's user network (its own DHCP server; one UDP port of this host leads to the duck), so no test needs
# root.
# shellcheck source=tests/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

base_port=$((20000 + $$ % 12000)) # and 101 more, all below those that the kernel deals out
launcher=() # what starts QEMU, if not this script itself

# shellcheck source=tests/qemu/ovmf.sh
. "$(dirname "${BASH_SOURCE[0]}")/ovmf.sh"
command -v qemu-system-x86_64 >/dev/null || skip "needs QEMU: apt-get install qemu-system-x86"

# machine NAME CORES MEMORY ARGUMENT...: a guest whose serial line goes to NAME.log. TCG: works on every host.
machine() {
    local name=$1 cores=$2 memory=$3
    shift 3
    "${launcher[@]}" qemu-system-x86_64 -machine q35 -accel tcg,thread=multi -cpu max -smp "$cores" -m "$memory" -nodefaults -display none \
        -no-reboot -bios "$ovmf" -serial "file:$work/$name.log" -monitor none "$@" </dev/null >"$work/$name.qemu.log" 2>&1 &
    pids+=($!)
}

# boot NAME NUMBER NIC CORES OPTIONS [ARGUMENT...]: a duck started without a network boot; UDP port base_port + NUMBER leads to it.
boot() {
    machine "$1" "$4" 96 -kernel "$build/duck/BOOTX64.EFI" -append "name=$1 spin_us=200 $5" \
        -netdev "user,id=n,hostfwd=udp:127.0.0.1:$((base_port + $2))-:21210" -device "$3,netdev=n,romfile=" "${@:6}"
}

# ended PID NAME [SECONDS]: its QEMU ends. wait_for NAME TEXT: until the guest's log holds it. The time is for a slow and busy machine.
gone() { ! kill -0 "$1" 2>/dev/null; }
ended() { until_true "${3-180}" gone "$1" || fail "$2 goes on"; }
wait_for() { until_true 180 grep -qs -- "$2" "$work/$1.log" || fail "$1 has not said '$2'"; }

# flock_file NAME NUMBER...: ducks by their numbers.
flock_file() {
    local name=$1 list="" n
    shift
    for n in "$@"; do list+="${list:+, }{\"address\": \"127.0.0.1:$((base_port + n))\"}"; done
    # dead_ms: virtual cores share real ones, a guest may stand still for seconds.
    cat >"$work/$name" <<END
{"transport": "udp", "key_file": "$work/key", "state_dir": "$work/state", "find_ms": 60000, "dead_ms": 20000,
 "ports": [{"address": "127.0.0.1", "ducks": [$list]}]}
END
}

# compute FLOCK OUT LOG OPTION...: logits of $work/tokens by a flock.
compute() {
    timeout 180 "$build/duckd" logits --tokens "$work/tokens" --out "$work/$2" --flock "$1" "${@:4}" -v 2>"$work/$3" ||
        fail "duckd with flock $1: $(tail -n 3 "$work/$3")"
}
