#!/usr/bin/env bash
# mutate.sh SOURCE.c LIST OUT: drivers with one mistake each. LIST has lines "name ~ from ~ to ~ complaint"; `from` must
# stand in the source exactly once. Writes OUT/DRIVER_name.c each, and OUT/DRIVER_mutants.c with the table of them.
set -euo pipefail
source=$1 list=$2 out=$3
driver=$(basename "$source" .c)
mkdir -p "$out"
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
    ' "$source" >"$out/${driver}_$name.c" || failed=1
    echo "extern const struct nic_driver ${driver}_$name;" >>"$table"
    entries+="    {\"$name\", &${driver}_$name, \"$complaint\"},"$'\n'
done <"$list"
printf 'const struct mutant mutants[] = {\n%s};\nconst uint32_t mutants_count = sizeof mutants / sizeof *mutants;\n' "$entries" >>"$table"
exit $failed
