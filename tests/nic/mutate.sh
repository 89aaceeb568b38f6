#!/usr/bin/env bash
# mutate.sh SOURCE.c RING.h LIST OUT: drivers with one mistake each, in the driver or in the ring code that it includes.
# LIST has lines "name ~ from ~ to ~ complaint"; `from` must stand in driver and ring code exactly once. Writes OUT/DRIVER_name.c each, and OUT/DRIVER_mutants.c with the table of them.
set -euo pipefail
source=$1 ring=$2 list=$3 out=$4
driver=$(basename "$source" .c)
mkdir -p "$out"
whole=$out/$driver.whole
awk -v ring="$ring" '/^#include "duck\/nic\/ring.h"$/ { while ((getline line <ring) > 0) print line; next } { print }' "$source" >"$whole"
table=$out/${driver}_mutants.c
entries=""
failed=0
echo '#include "tests/nic/exercise.h"' >"$table"
while IFS= read -r line; do
    case $line in '' | '#'*) continue ;; esac
    name=${line%% ~ *} rest=${line#* ~ }
    from=${rest%% ~ *} rest=${rest#* ~ }
    to=${rest%% ~ *} complaint=${rest#* ~ }
    FROM=$from TO=$to awk -v file="$source" -v driver="$driver" -v name="$name" '
        BEGIN { print "#define " driver "_driver " driver "_" name; from = ENVIRON["FROM"]; to = ENVIRON["TO"] }
        { at = index($0, from)
          if (at) { found++; $0 = substr($0, 1, at - 1) to substr($0, at + length(from)) }
          print }
        END { if (found != 1) { print file ": \"" from "\" of " name " is there " found + 0 " times, must be once" >"/dev/stderr"; exit 1 } }
    ' "$whole" >"$out/${driver}_$name.c" || failed=1
    echo "extern const struct nic_driver ${driver}_$name;" >>"$table"
    entries+="    {\"$name\", &${driver}_$name, \"$complaint\"},"$'\n'
done <"$list"
printf 'const struct mutant mutants[] = {\n%s};\nconst uint32_t mutants_count = sizeof mutants / sizeof *mutants;\n' "$entries" >>"$table"
exit $failed
