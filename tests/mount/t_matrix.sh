#!/bin/bash
# bench/matrix: its cases, its table, what is already in the file, and the sysctls after any end.
# timeout: 180
# shellcheck source=../lib/mount_test.sh
. "$PACEFS_REPO/tests/lib/mount_test.sh"

matrix=$PACEFS_REPO/bench/matrix
rig=$PACEFS_REPO/bench/rig

# mistake TEXT ARGUMENT...: ends with a status that is not 0 and one line with TEXT
mistake() {
	local text=$1
	shift
	! "$matrix" "$@" >out.log 2>err.log && grep -qF -- "$text" err.log &&
		[ "$(wc -l <err.log)" = 1 ] && [ ! -s out.log ]
}

# run CASE SYSTEM REPEAT MBs
run() {
	echo "{\"case\": \"$1\", \"system\": \"$2\", \"repeat\": $3, \"warm\": 4.0," \
		"\"seconds_wanted\": 16.0, \"durable_MBs\": $4, \"jain\": 0.5}"
}

check_eq "the short table has eight cases" "$("$matrix" --quick --list | wc -l)" 8
check_eq "of them --only shows some" "$("$matrix" --quick --list --only 'hdd/*' | wc -l)" 2
check_eq "and others by name" "$("$matrix" --list slow/thresh=8M/xfs-2dd-64k)" \
	slow/thresh=8M/xfs-2dd-64k
check "no case" mistake "which cases"
check "a name that is none" mistake "no case thresh=1/ext5-1dd" thresh=1/ext5-1dd
check "a system that is none" mistake "no system bsd" --quick --systems bsd
check "no number" mistake "x is not a number" --quick --repeat x
check "a pattern without a case" mistake "no such case" --quick --only nothing
check "a table of no file" mistake "No such file" --quick --table --json none

a=thresh=1M/ext4-1dd-4k b=hdd/thresh=8M/ext4-10dd-4k
{
	for mbs in "0 10" "1 30" "2 20"; do
		# shellcheck disable=SC2086
		run $a kernel $mbs
	done
	run $a pacefs-linux 0 24
	run $b kernel 0 30
	run $b pacefs-linux 0 33
	run $a pacefs-linux 1 99 | sed 's/16.0/5.0/' # of another length
	run $a pacefs-linux 1 99 | head -c 60        # cut off
} >runs.json
"$matrix" --quick --table --json runs.json >table 2>err.log
check "a table of a file" test -s table
check "median, range and ratio" grep -qE "^ *20.00 \(10.00..30.00\) +24.00 +1.200  $a$" table
check "total" grep -qE "^ *50.00 +57.00 +1.140  TOTAL" table
check "a line that was cut off is named" grep -qF "runs.json:8 is not a result" err.log

# of_build BUILD: the line read is of that build of pacefs
of_build() {
	sed "s/}/, \"build\": \"$1\"}/"
}

# What one build did is not told as another's: the last one counts. The kernel has none.
{
	run $a kernel 0 20
	run $a pacefs-pace 0 40 | of_build 0123
	run $a pacefs-pace 1 10 | of_build 4567
} >builds.json
"$matrix" --quick --table --json builds.json >table 2>err.log
check "the last build counts alone" grep -qE "^ *20.00 +10.00 +0.500  $a$" table
check "and others are named" grep -qF "1 runs in builds.json are of other builds than 4567" err.log

knobs() {
	(cd /proc/sys/vm && cat dirty_bytes dirty_ratio dirty_background_bytes \
		dirty_background_ratio | xargs)
}

knobs_are() {
	[ "$(knobs)" = "$1" ]
}

# set_knobs BYTES RATIO BG_BYTES BG_RATIO, of each pair one 0
set_knobs() {
	[ "$1" = 0 ] && echo "$2" >/proc/sys/vm/dirty_ratio || echo "$1" >/proc/sys/vm/dirty_bytes
	[ "$3" = 0 ] && echo "$4" >/proc/sys/vm/dirty_background_ratio ||
		echo "$3" >/proc/sys/vm/dirty_background_bytes
}

# ended HOW: a program with a guard has changed the sysctls and ends
ended() {
	python3 - "$1" <<-END
		import os, signal, sys
		sys.path.insert(0, "$rig")
		import dirty_limit
		guard = dirty_limit.Guard()
		limit = dirty_limit.DirtyLimit(1 << 20)
		limit.begin()
		assert dirty_limit.read("dirty_bytes") == 1 << 20
		assert dirty_limit.read("dirty_background_bytes") == 1 << 19
		if sys.argv[1] == "end":
		    limit.end()
		    print(*dirty_limit.current().values())
		os.kill(os.getpid(), signal.SIGKILL)
	END
}

# begin_fails: what begin() has changed already is put back if it cannot change the rest
begin_fails() {
	python3 - <<-END
		import sys
		sys.path.insert(0, "$rig")
		import dirty_limit
		before, write = dirty_limit.current(), dirty_limit.write
		def refuse(name, value):
		    if name == "dirty_bytes" and value == 1 << 20:
		        raise OSError("refused")
		    write(name, value)
		dirty_limit.write = refuse
		try:
		    dirty_limit.DirtyLimit(1 << 20).begin()
		except OSError:
		    assert dirty_limit.current() == before
		    sys.exit(0)
		sys.exit(1)
	END
}

# end_tells: nothing can be put back any more, and that is told
end_tells() {
	python3 - 2>err.log <<-END
		import sys
		sys.path.insert(0, "$rig")
		import dirty_limit
		guard = dirty_limit.Guard()
		limit = dirty_limit.DirtyLimit(1 << 20)
		limit.begin()
		write, dirty_limit.write = dirty_limit.write, lambda name, value: None
		try:
		    limit.end()
		    sys.exit("end() does not tell")
		except OSError as why:
		    print(why, file=sys.stderr)
		dirty_limit.write = write
		guard.end()
		def fail(saved):
		    raise OSError
		dirty_limit.restore = fail
		dirty_limit.Guard().end()
	END
}

before=$(knobs)
# shellcheck disable=SC2064
trap "set_knobs $before; _finish" EXIT
for form in "0 20 0 10" "200000000 0 0 7" "0 30 90000000 0"; do
	# shellcheck disable=SC2086
	set_knobs $form
	check_eq "put back by the run" "$(ended end)" "$form"
	check "put back where begin() fails" begin_fails
	check_eq "as before" "$(knobs)" "$form"
	check "it is told where end() fails" end_tells
	check "by name" grep -q "/proc/sys/vm: .* as before" err.log
	check "and where the guard fails" grep -q "/proc/sys/vm could not be put back" err.log
	check_eq "one that does not fail puts it back" "$(knobs)" "$form"
	{ ended kill; } 2>/dev/null # no word of bash's about it
	_slowdisk_wait 5 knobs_are "$form"
	check_eq "put back by the guard" "$(knobs)" "$form"
done
