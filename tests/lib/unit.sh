#!/bin/bash
# unit.sh NAME BINARY - runs one cmocka test and turns its TAP output into our check lines.
set -u
name=$1
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT

{ "$2" >"$log" 2>&1; } 2>/dev/null
status=$?
# cmocka 1.1.5 calls a skipped test "not ok N # SKIP name"
sed -E -e "s|^[[:space:]]*(not )?ok [0-9]+ # *SKIP *(.*)|skip $name/\2: it skips itself|I" \
	-e "s|^[[:space:]]*ok [0-9]+ *(- *)?|ok $name/|" \
	-e "s|^[[:space:]]*not ok [0-9]+ *(- *)?(.*)|not ok $name/\2: see its output|" "$log"
planned=$(sed -n 's/^[[:space:]]*1\.\.\([0-9]*\).*/\1/p' "$log" | tail -n 1)
ran=$(grep -cE '^[[:space:]]*(not )?ok [0-9]' "$log")
if [ "$status" -ge 128 ] || [ "$ran" -lt "${planned:-1}" ]; then
	echo "not ok $name: ended with status $status after $ran of ${planned:-?} tests"
fi
exit "$status"
