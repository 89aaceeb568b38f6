#!/usr/bin/env bash
# absent.sh: a flock that begins while one of its ducks is missing, and takes it in when it comes; a flock whose only duck dies: the
# answer ends with one line, later ones at once with another, and when the duck is there again everything goes on by itself.
# shellcheck source=tests/net/lib.sh
. "$(dirname "$0")/lib.sh"
start() { udp_duck "$1" "$1"; } # start I: duck I, in pids[I]
stop() {
    kill -9 "${pids[$1]}"
    wait "${pids[$1]}" 2>/dev/null || true
}
flock() { # flock NAME MAY_MISS I...
    local name=$1 may_miss=$2 comma='' ducks='' i
    shift 2
    for i in "$@"; do
        ducks+="$comma{\"address\": \"127.0.0.1$i:$port\"}"
        comma=', '
    done
    echo "{\"transport\": \"udp\", \"key_file\": \"$work/key\", \"state_dir\": \"$work/state\", \"dead_ms\": 800, \"find_ms\": 2500,
        \"may_miss\": $may_miss, \"ports\": [{\"address\": \"127.0.0.1\", \"ducks\": [$ducks]}]}" >"$work/$name"
}

# Two of three: not without being allowed to, and not without the memory.
start 1
start 2
ducks_ready 1 2
flock strict 0 1 2 3
if "$build/duckd" generate -p x -n 1 --flock "$work/strict" 2>"$work/strict.log" >/dev/null; then fail "a missing duck was not missed"; fi
grep -q "1 of 3 ducks has not answered" "$work/strict.log" || fail "a missing duck: $(cat "$work/strict.log")"
flock three 1 1 2 3
sed 's/"address": "127.0.0.1[12]:/"memory_gb": 0.01, &/g' "$work/three" >"$work/small"
if "$build/duckd" generate -p x -n 1 --flock "$work/small" 2>"$work/small.log" >/dev/null; then fail "20 MB held the model"; fi
grep -q "MB of duck memory" "$work/small.log" || fail "too little memory: $(cat "$work/small.log")"

endless three --mtp 0
wait_for "model loaded" "$work/net.log"
grep "1 of 3 ducks has not answered.*begins without" "$work/net.log" || fail "the missing duck was not named"
start 3
wait_for "udp-2 takes part again" "$work/net.log"
grown "$work/net.txt" 200
same_as_local
grep "duck udp-2: [1-9][0-9]* slices.* [1-9][0-9]* expert reads" "$work/net.log" || fail "the late duck has done nothing"
# All three hold what they hold when none is missing.
"$build/duckd" "${endless[@]}" -n 5 --flock "$work/three" -v >/dev/null 2>"$work/net.log" || fail "the next daemon: $(cat "$work/net.log")"
grep "weights: 0 units sent" "$work/net.log" || fail "weights have moved: $(grep weights: "$work/net.log")"
stop 2
stop 3

# One duck alone, under a server.
flock one 0 1
serve serve.log --flock "$work/one"
ask_ready "$listen" before
[ -n "$(answer before)" ] || fail "no answer: $(cat "$work/before")"
# It dies in the middle of an answer: that one ends with the reason, later ones are not begun.
exec 3<>"/dev/tcp/127.0.0.1/$listen"
body='{"prompt": "hello there", "max_tokens": 3000, "logit_bias": {"1": -100}, "stream": true}'
printf 'POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s' ${#body} "$body" >&3
cat <&3 >"$work/stream" &
reader=$!
wait_for "data: " "$work/stream"
stop 1
wait "$reader"
exec 3>&-
grep 'data: {"error":.*"code":"no_ducks"' "$work/stream" || fail "the stream's end: $(tail -c 300 "$work/stream")"
refused() {
    grep -q "HTTP/1.1 503" "$1" && grep -q "^Retry-After: [1-9]" "$1" && grep -q '"code":"no_ducks"' "$1" || fail "$1: $(cat "$1")"
}
ask "$listen" during
refused "$work/during"
get "$listen" /health sick
refused "$work/sick"
at_once() { # of a busy machine's time a request may get little: one of several is not kept waiting
    local begun
    begun=$(date +%s%N)
    ask "$listen" still
    refused "$work/still"
    [ $((($(date +%s%N) - begun) / 1000000)) -lt 500 ]
}
until_true 60 at_once || fail "that the duck is lost was not known afterwards"
grep "1 of 1 ducks lost, and the flock cannot answer until udp-0 is back\"" "$work/still" || fail "what was said: $(cat "$work/still")"
start 1
healthy() { get "$listen" /health well && grep -q "HTTP/1.1 200" "$work/well"; }
until_true 60 healthy || fail "nobody asks, and that the duck is back is not noticed: $(cat "$work/well")"
ask "$listen" after
[ "$(answer before)" = "$(answer after)" ] || fail "another answer: $(answer before), $(answer after)"
grep "udp-0 takes part again" "$work/serve.log" || fail "what the server said: $(cat "$work/serve.log")"

# Nobody asks while it goes.
stop 1
sick() { get "$listen" /health sick && grep -q "HTTP/1.1 503" "$work/sick"; }
until_true 60 sick || fail "nobody asks, and that the duck is lost is not noticed: $(cat "$work/sick")"
refused "$work/sick"
start 1
until_true 60 healthy || fail "the duck is back: $(cat "$work/well")"
ask "$listen" again
[ "$(answer before)" = "$(answer again)" ] || fail "another answer: $(answer before), $(answer again)"
[ "$(grep -c "no requests are taken: .*1 of 1 ducks lost" "$work/serve.log")" -eq 2 ] || fail "what the server said: $(cat "$work/serve.log")"
echo "ok"
