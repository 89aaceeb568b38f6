# shellcheck shell=bash
# lib.sh: what the tests on a real network share beside tests/lib.sh: a network namespace with bridges, removed at the
# end, ducks, flock files.
# shellcheck source=tests/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

ns=duckd-$$
have_ns=0
at_end() { [ $have_ns -eq 0 ] || ip netns del "$ns"; }
# shellcheck disable=SC2034 # of UDP ducks; below those that the kernel deals out
port=$((20000 + $$ % 12000))

# What the namespace's tests run in.
x() { ip netns exec "$ns" "$@"; }

make_namespace() {
    [ "$(id -u)" -eq 0 ] || skip "needs root: network namespaces, raw frames"
    command -v ethtool >/dev/null || skip "needs ethtool: apt-get install ethtool"
    ip netns add "$ns" 2>"$work/ns.log" || skip "network namespaces cannot be made here: $(cat "$work/ns.log")"
    have_ns=1
    x sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
}

# veth A B: a cable between two interfaces; checksums as on a real one.
veth() {
    x ip link add "$1" type veth peer name "$2"
    for i in "$1" "$2"; do
        x ethtool -K "$i" tx off rx off >/dev/null 2>&1 || fail "checksum offload of $i cannot be switched off"
        x ip link set "$i" up
    done
}

# bridge K: the switch of domain K, with the host's port pK in it.
bridge() {
    x ip link add "br$1" type bridge forward_delay 0 stp_state 0 mcast_snooping 0
    x ip link set "br$1" up
    veth "p$1" "p$1b"
    [ "${2-}" = apart ] || x ip link set "p$1b" master "br$1"
}

# duck K I MEMORY: duck I of domain K, 10.21.K.(100 + I), with its cable; start_duck: the process alone, again.
duck() {
    veth "d$1_$2" "d$1_$2b"
    x ip link set "d$1_$2b" master "br$1"
    start_duck "$@"
}

start_duck() {
    ip netns exec "$ns" "$build/duck-linux" --interface "d$1_$2" --address "10.21.$1.$((100 + $2))" \
        --mac "02:00:00:00:0$1:0$2" --key "$work/key" --memory "$3" --name "d$1-$2" >>"$work/duck$1_$2.log" 2>&1 &
    pids+=($!)
}

# udp_duck I [NUMBER]: duck I behind 127.0.0.1I, in pids[NUMBER]; all of them are ready when ducks_ready has returned.
udp_duck() {
    [ ! -f "$work/duck$1.log" ] || mv "$work/duck$1.log" "$work/duck$1.before"
    "$build/duck-linux" --udp "127.0.0.1$1" --port "$port" --key "$work/key" --memory 64M --name "duck-$1" >"$work/duck$1.log" 2>&1 &
    pids[${2-${#pids[@]}}]=$!
}
ducks_ready() {
    local i
    for i in "$@"; do wait_for "ready: port" "$work/duck$i.log"; done
}

# flock_file NAME DOMAINS DUCKS [EXTRA]: ports p0 .. as DPDK devices.
flock_file() {
    local k i comma=
    {
        echo "{\"transport\": \"dpdk\", \"key_file\": \"$work/key\", \"state_dir\": \"$work/state\", \"memory_mb\": 128, \"find_ms\": 30000, ${4-}"
        echo "\"ports\": ["
        for ((k = 0; k < $2; k++)); do
            echo "$comma{\"device\": \"net_af_packet$k,iface=p$k\", \"lcore\": $((2 * k + 2)), \"address\": \"10.21.$k.1/24\","
            printf '"ducks": ['
            comma=
            for ((i = 1; i <= $3; i++)); do
                printf '%s{"address": "10.21.%d.%d", "weight": 1}' "$comma" "$k" $((100 + i))
                comma=", "
            done
            echo "]}"
            comma=,
        done
        echo "]}"
    } >"$work/$1"
}

# Of all threads of a process, in ns: on a CPU, and runnable without one, which on a busy machine is most of what a worker does
# that never sleeps.
times() { awk '{ on += $1; ready += $1 + $2 } END { printf "%.0f %.0f\n", on, ready }' /proc/"$1"/task/*/schedstat; }
# idle PID: of two seconds, in percent: on a CPU, and runnable.
idle() {
    local before after
    read -r -a before < <(times "$1")
    sleep 2
    read -r -a after < <(times "$1")
    echo $(((after[0] - before[0]) / 20000000)) $(((after[1] - before[1]) / 20000000))
}

# endless FLOCK [OPTION ...]: in the background, $daemon, an answer to net.txt and net.log that does not end by itself before a test has seen
# what it waits for: duckling's own context is full after seconds. same_as_local: ends it; local ducks give the same text.
endless() {
    local within=()
    [ $have_ns -eq 0 ] || within=(ip netns exec "$ns")
    mkdir -p "$work/endless"
    ln -sf "$PWD"/models/duckling/*.safetensors* "$PWD"/models/duckling/tokenizer* "$work/endless/"
    sed 's/"max_position_embeddings": 4096/"max_position_embeddings": 1000000/' models/duckling/config.json >"$work/endless/config.json"
    endless=(generate --model "$work/endless" -p "hello there" --ignore-eos --temperature 0 "${@:2}")
    : >"$work/net.txt" && : >"$work/net.log" # before anybody looks for what only this one will say
    "${within[@]}" "$build/duckd" "${endless[@]}" -n 900000 --flock "$work/$1" -v >"$work/net.txt" 2>"$work/net.log" &
    daemon=$!
    pids[99]=$daemon # whatever number the next duck has
}
same_as_local() {
    local status=0 tokens
    kill "$daemon" || fail "the answer has ended: $(tail -n 3 "$work/net.log")" # not -INT: what a script has in the background ignores that
    wait "$daemon" || status=$?
    [ $status -eq 130 ] || fail "the answer ended with $status: $(tail -n 3 "$work/net.log")"
    tokens=$(sed -n 's/.* \([0-9]*\) generated (cancelled).*/\1/p' "$work/net.log")
    local_duckd "${endless[@]}" -n "$tokens" >"$work/local.txt"
    cmp "$work/local.txt" "$work/net.txt" || fail "the text differs from that of local ducks"
    echo "$tokens tokens are the same"
}

# memif_flock POLL: a flock file whose only duck, 10.21.0.101, is duck-dpdk on the other side of a memif ($memif: its
# arguments); POLL: whether the host never sleeps.
memif_flock() {
    memif="socket=$work/memif,socket-abstract=no"
    cat >"$work/flock" <<END
{"transport": "dpdk", "key_file": "$work/key", "state_dir": "$work/state", "memory_mb": 64, "poll": $1,
 "ports": [{"device": "net_memif0,role=client,$memif", "address": "10.21.0.1/24", "ducks": [{"address": "10.21.0.101"}]}]}
END
}

# amid FILE COMMAND...: in the background, as soon as FILE begins to fill again, with an answer.
amid() {
    local file=$1
    shift
    rm -f "$file"
    { until_true 60 test -s "$file" && "$@"; } &
}
# grown FILE BYTES: until the answer in FILE has become so much longer.
longer() { [ "$(stat -c %s "$1")" -ge "$2" ]; }
grown() { until_true 60 longer "$1" $(($(stat -c %s "$1") + $2)) || fail "the answer stands still: $(tail -c 100 "$1")"; }
# wait_for TEXT FILE [SECONDS]: until the text is in the file. The time is for a slow and busy machine, where none is given.
wait_for() { until_true "${3-60}" grep -qs -- "$1" "$2" || fail "'$1' is not in $(basename "$2") after ${3-60} s"; }

# counter FILE NAME: the sum of one counter of all ducks in a -v log, e.g. "asked again".
counter() { sed -n "s/.*$2 \([0-9]*\),.*/\1/p" "$1" | awk '{ n += $1 } END { print n + 0 }'; }

# local_duckd ARGUMENT...: with local ducks, $local_ducks of them; net_duckd FLOCK ARGUMENT...: with the network's.
local_ducks=4
local_duckd() { timeout 300 "$build/duckd" "$@" --flock "local:$local_ducks" -v 2>"$work/local.log"; }
net_duckd() {
    local flock=$1
    shift
    timeout 300 ip netns exec "$ns" "$build/duckd" "$@" --flock "$work/$flock" -v 2>"$work/net.log" ||
        fail "duckd $* with $flock ended with $?: $(tail -n 3 "$work/net.log")"
}

# shellcheck disable=SC2034
# serve LOG OPTION...: a server on a free port, $listen, its process $!; it listens, and has not necessarily loaded the model.
serve() {
    local log=$work/$1
    shift
    : >"$log"
    "$build/duckd" serve --listen 127.0.0.1:0 "$@" >"$log" 2>&1 &
    pids+=($!)
    wait_for "listening on" "$log"
    listen=$(sed -n 's,.*listening on http://127.0.0.1:\([0-9]*\).*,\1,p' "$log")
}

# ask PORT FILE: what the daemon on that port of 127.0.0.1 makes of a prompt; empty if it does not listen.
ask() {
    local body='{"prompt": "hello there", "max_tokens": 60, "temperature": 0}'
    (exec 3<>"/dev/tcp/127.0.0.1/$1" &&
        printf 'POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' ${#body} "$body" >&3 &&
        timeout 120 cat <&3) >"$work/$2" 2>/dev/null || true
}
# ask_ready PORT FILE: as soon as its model is loaded.
answered() { ask "$@" && grep -q "HTTP/1.1 200" "$work/$2"; }
ask_ready() { until_true 60 answered "$@" || fail "no answer: $(cat "$work/$2")"; }
# get PORT PATH FILE: what the daemon says at a path; empty if it does not listen.
get() {
    (exec 3<>"/dev/tcp/127.0.0.1/$1" && printf 'GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n' "$2" >&3 &&
        timeout 60 cat <&3) >"$work/$3" 2>/dev/null || true
}
# answer FILE: the text of what ask() got.
answer() { sed -n 's/.*"text": *\("[^"]*"\).*/\1/p' "$work/$1"; }

# bench FLOCK OPTION...: bench-net in the namespace, shown and in bench.log.
bench() {
    local flock=$1
    shift
    timeout 300 ip netns exec "$ns" "$build/bench-net" --flock "$work/$flock" "$@" >"$work/bench.log" 2>"$work/bench.err" ||
        fail "bench-net $*: $(cat "$work/bench.err")"
    cat "$work/bench.log"
}

# compare_logits FLOCK OPTION...: logits bit for bit, and who has computed the experts.
compare_logits() {
    local flock=$1
    shift
    echo '[0,5,9,14,22,31,47,60,73,90,101,117]' >"$work/tokens"
    local_duckd logits "$@" --tokens "$work/tokens" --out "$work/local.f32"
    reads_local=$(expert_reads "$work/local.log")
    net_duckd "$flock" logits "$@" --tokens "$work/tokens" --out "$work/net.f32"
    reads_net=$(expert_reads "$work/net.log")
    cmp "$work/local.f32" "$work/net.f32" || fail "logits differ from those of local ducks"
    [ "$reads_net" -gt 0 ] || fail "the ducks say that they have computed nothing"
    echo "logits equal bit for bit; expert reads: $reads_net on the network, $reads_local with $local_ducks local ducks"
}

compare_text() {
    local flock=$1
    shift
    local_duckd generate "$@" >"$work/local.txt"
    net_duckd "$flock" generate "$@" >"$work/net.txt"
    cmp "$work/local.txt" "$work/net.txt" || fail "the text differs from that of local ducks"
    grep -h "tok/s" "$work/net.log"
}
