#!/usr/bin/env bash
# quiet.sh: what a step costs in allocations and system calls where no kernel moves the frames, on both ends of a memif:
# none. Without root, namespaces or huge pages.
# shellcheck source=tests/net/lib.sh
. "$(dirname "$0")/lib.sh"
command -v strace >/dev/null || skip "needs strace: apt-get install strace"
# shellcheck disable=SC2034 # used by name
count=(env "LD_PRELOAD=$build/tests/libcount-alloc.so")

# run NAME STEPS HOST_WRAPPER -- DUCK_WRAPPER: a duck and a bench, both polling; logs NAME-duck, NAME-host.
run() {
    local name=$1 steps=$2 duck
    local -n host_wrapper=$3 duck_wrapper=$4
    memif_flock "$poll"
    "${duck_wrapper[@]}" "$build/tests/duck-dpdk" "net_memif0,role=server,$memif" 10.21.0.101 "$(cat "$work/key")" 64 \
        >"$work/$name-duck" 2>&1 &
    duck=$!
    pids+=("$duck")
    wait_for ready "$work/$name-duck"
    timeout 200 "${host_wrapper[@]}" "$build/bench-net" --flock "$work/flock" --hidden 1024 --experts 16 --steps "$steps" \
        >"$work/$name.out" 2>"$work/$name-host" || fail "bench-net: $(cat "$work/$name-host")"
    kill "$duck"
    wait "$duck" || fail "the duck: $(cat "$work/$name-duck")"
}

allocations() { sed -n 's/^allocations: //p' "$work/$1"; }

# Twice, with unlike numbers of steps.
poll=false
run few 50 count count
run many 350 count count
for end in host duck; do
    few=$(allocations few-$end) many=$(allocations many-$end)
    echo "$end: $few allocations with 2 x 50 steps, $many with 2 x 350"
    [ "${few:-0}" -gt 0 ] && [ "${many:-0}" -gt 0 ] || fail "nothing was counted"
    [ $((many - few)) -lt 30 ] && [ $((few - many)) -lt 30 ] || fail "steps allocate"
done

# Calls between the bench's lines "steps begin" and "steps end", by time: of all threads, those that only wait included.
# shellcheck disable=SC2034
host_trace=(strace -D -f -ttt -s 999 -o "$work/host.trace") duck_trace=(strace -D -f -ttt -o "$work/duck.trace")
spans() { awk '/steps begin/ { a = $2 } /steps end/ { print a, $2 }' "$work/host.trace"; }
# calls WHO BEGIN END: into WHO.calls and $calls. What was traced has made calls before and after, or nothing is shown.
calls() {
    awk -v a="$2" -v b="$3" '$2 > a && $2 < b && !/resumed>/' "$work/$1.trace" >"$work/$1.calls"
    calls=$(wc -l <"$work/$1.calls")
    awk -v a="$2" -v b="$3" '$2 < a { before++ } $2 > b { after++ } END { exit !(before && after) }' "$work/$1.trace" || fail "the $1 was not traced"
}

poll=true
run traced 100 host_trace duck_trace
[ "$(spans | wc -l)" -eq 2 ] || fail "steps of one lane and of two were to be traced: $(spans)"
while read -r begin end; do
    for who in host duck; do
        calls $who "$begin" "$end"
        echo "$who: $calls system calls during 100 steps in $(echo "$begin $end" | awk '{ printf "%.1f", $2 - $1 }') s"
        # Threads that look at the link once a second and the like may have woken, on a busy machine more often.
        [ "$calls" -lt $((25 + 3 * $(awk -v a="$begin" -v b="$end" 'BEGIN { printf "%d", b - a }'))) ] || fail "steps make system calls: $(awk '{ sub(/\(.*/, "", $3); print $3 }' "$work/$who.calls" | sort | uniq -c | sort -nr | head -5)"
    done
done < <(spans)

# Counted the same way, a host that sleeps until results come makes at least one a step.
poll=false
run sleeps 100 host_trace duck_trace
while read -r begin end; do
    calls host "$begin" "$end"
    echo "a host that sleeps: $calls system calls during 100 steps"
    [ "$calls" -ge 100 ] || fail "they are not all seen"
done < <(spans)
echo "ok"
