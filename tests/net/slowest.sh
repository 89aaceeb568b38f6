#!/usr/bin/env bash
# slowest.sh: while weights go, the terminal shows all ducks' and the slowest duck's: the one behind the slowest link. In a file
# both are on one line, and nothing but lines.
# shellcheck source=tests/net/lib.sh
. "$(dirname "$0")/lib.sh"
command -v script >/dev/null || skip "needs script: apt-get install bsdutils"
make_namespace
bridge 0
for n in 1 2 3; do
    duck 0 $n 64M
    x tc qdisc add dev "d0_${n}b" root tbf rate $((n == 2 ? 5 : 10))mbit burst 32kb latency 50ms 2>"$work/tc.log" ||
        skip "links cannot be shaped here: $(cat "$work/tc.log")"
done
flock_file flock 1 3
answer=("$build/duckd" generate -p "hello there" -n 5 --temperature 0 --flock "$work/flock" -v)
amounts='[0-9.]* / [0-9.]* MB  [0-9.e+]* MB/s  ETA [0-9:?]*'

# Elsewhere than on a terminal.
ip netns exec "$ns" "${answer[@]}" >"$work/net.txt" 2>"$work/net.log" &
pids+=($!)
wait_for "^loading experts  $amounts  slowest dpdk-[0-2]  $amounts$" "$work/net.log"
if LC_ALL=C grep -n $'[\x01-\x08\x0b-\x1f]' "$work/net.log"; then fail "control characters in a file"; fi
kill -9 $!
wait $! 2>/dev/null || true

# What a terminal was written, as lines. The manifest is gone: everything is sent again.
rm -rf "$work/state"
x script -qec "${answer[*]@Q}" "$work/typescript" >/dev/null </dev/null || fail "on a terminal: $(cat "$work/typescript")"
sed 's/\x1b\[[KA]//g' "$work/typescript" | tr '\r' '\n' | grep -x "loading experts  $amounts\|slowest dpdk-[0-2]  $amounts" >"$work/shown" ||
    fail "no bar: $(cat "$work/typescript")"
# As long as none of the three can be done, and at the end.
awk '/^loading/ { held = $3 } /^slowest/ { last = $2; if (held < 12) { early++; right += $2 == "dpdk-1" } }
    END { print right + 0 " of " early + 0 " early looks and " last; exit !(early && right * 2 > early && last == "dpdk-1") }' "$work/shown" ||
    fail "not the duck behind the slowest link: $(cat "$work/shown")"
tail -n 2 "$work/shown"
echo "ok"
