#!/usr/bin/env bash
# dissector.sh: what Wireshark's dissector (tools/duckd.lua) says of a frame of every type is what duck/wire.h says of it.
# shellcheck source=tests/net/lib.sh
. "$(dirname "$0")/lib.sh"
command -v tshark >/dev/null || skip "needs tshark: apt-get install tshark"
"$build/tests/dissector-frames" "$work/frames.pcap" >"$work/expected"
read -r names <"$work/expected"
options=()
for name in ${names//;/ }; do options+=(-e "$name"); done
HOME=$work tshark -r "$work/frames.pcap" -X lua_script:tools/duckd.lua -T fields -E separator=';' -E header=y -E occurrence=f "${options[@]}" >"$work/said" \
    2>"$work/tshark.log" || fail "tshark: $(cat "$work/tshark.log")"
diff "$work/expected" "$work/said" >"$work/diff" || fail "they differ: $(head -n 4 "$work/diff")"
HOME=$work tshark -r "$work/frames.pcap" -X lua_script:tools/duckd.lua -Y _ws.malformed 2>>"$work/tshark.log" | grep . && fail "frames are malformed"
HOME=$work tshark -r "$work/frames.pcap" -X lua_script:tools/duckd.lua -V 2>>"$work/tshark.log" | grep "Lua Error" && fail "the dissector stumbles"
echo "$(($(wc -l <"$work/said") - 1)) frames, $((${#options[@]} / 2)) fields: the same"
