#!/bin/bash
# Before the machine sleeps every task must be frozen, and one that waits for an answer cannot be:
# writes that wait for room on a silent disk are answered when logind says that sleep comes.
# shellcheck source=../lib/mount_test.sh
. "$PACEFS_REPO/tests/lib/mount_test.sh"

src=$TEST_DIR/usb
mnt=$TEST_DIR/mnt
WRITERS=4
ROOM=${PACEFS_ROOM//\//_}
login1=$PACEFS_BUILD/tests/mount/fake_login1

[ -x "$login1" ] || skip_all "built without libsystemd"

# ---- a bus of its own, with a logind ----

bus_up() {
	cat >"$TEST_DIR/bus.conf" <<-END
		<busconfig>
		  <listen>unix:path=$TEST_DIR/bus</listen>
		  <auth>EXTERNAL</auth>
		  <policy context="default">
		    <allow send_destination="*"/><allow receive_type="signal"/><allow own="*"/>
		    <allow receive_type="method_call"/><allow receive_type="method_return"/>
		    <allow send_type="signal"/>
		  </policy>
		</busconfig>
	END
	dbus-daemon --config-file="$TEST_DIR/bus.conf" --nofork --nosyslog 2>"$TEST_DIR/bus.log" &
	bus=$!
	export DBUS_SYSTEM_BUS_ADDRESS=unix:path=$TEST_DIR/bus
	_slowdisk_wait 5 test -S "$TEST_DIR/bus" && mkfifo "$TEST_DIR/commands" || return 1
	"$login1" <"$TEST_DIR/commands" >"$TEST_DIR/told" &
	logind=$!
	exec {commands}>"$TEST_DIR/commands"
	_slowdisk_wait 5 grep -q ready "$TEST_DIR/told"
}

bus_down() {
	kill "$logind" "$bus"
	wait "$logind" "$bus"
	exec {commands}>&-
}

told() {
	[ "$(grep -c "$1" "$TEST_DIR/told")" -eq "$2" ]
}

say() {
	echo "$1" >&"$commands"
}

# ---- the freezer ----

freezer=
if [ -d /sys/fs/cgroup/freezer ]; then
	freezer=/sys/fs/cgroup/freezer/pacefs-$ROOM
	freeze() { echo "$1" >"$freezer/freezer.state"; }
	is_frozen() { [ "$(<"$freezer/freezer.state")" = FROZEN ]; }
	states=(THAWED FROZEN)
elif [ -e /sys/fs/cgroup/cgroup.controllers ]; then
	freezer=/sys/fs/cgroup/pacefs-$ROOM
	freeze() { echo "$1" >"$freezer/cgroup.freeze"; }
	is_frozen() { grep -q 'frozen 1' "$freezer/cgroup.events"; }
	states=(0 1)
fi

# ---- writers ----

# One line per write: begin and end (s), what was asked for, the result or -errno.
WRITER='
import ctypes, sys, time
libc = ctypes.CDLL(None, use_errno=True)
name, log = sys.argv[1], open(sys.argv[2], "w", 1)
file = libc.open(name.encode(), 0o1)
data = bytes([ord(name[-1])]) * 1048576
left = 3 * len(data)
while left:
    begin = time.monotonic()
    n = libc.write(file, data, min(left, len(data)))
    if n < 0:
        n = -ctypes.get_errno()
    print(begin, time.monotonic(), min(left, len(data)), n, file=log)
    if n < 0 and n != -4:
        sys.exit(1)
    left -= max(n, 0)
libc.close(file)
'

writers_start() {
	local i
	pids=()
	for ((i = 0; i < WRITERS; i++)); do
		(
			[ -z "$freezer" ] || echo "$BASHPID" >"$freezer/cgroup.procs"
			exec python3 -c "$WRITER" "$mnt/$i" "$TEST_DIR/log.$i"
		) &
		pids+=($!)
	done
}

# how many that ended after $1 (s) were short or EINTR
answered_after() {
	cat "$TEST_DIR"/log.* | awk -v after="$1" '$2 >= after && ($4 == -4 || $4 < $3)' | wc -l
}

are_answered_after() {
	[ "$(answered_after "$1")" -ge "$WRITERS" ]
}

# the longest of those that began after $1, s
longest_after() {
	cat "$TEST_DIR"/log.* | awk -v after="$1" \
		'$1 >= after && $2 - $1 > most { most = $2 - $1 } END { printf "%.2f", most }'
}

uptime_s() {
	cut -d' ' -f1 /proc/uptime
}

all_queued() {
	[ "$(pstat writers_queued)" -eq "$WRITERS" ]
}

bus_up || {
	cat "$TEST_DIR/bus.log"
	exit 1
}
if [ -n "$freezer" ]; then
	mkdir "$freezer" || exit 1
fi
source_up usb ext4 1G 20000000 || exit 1
pacefs_start "$src" "$mnt" max_bytes=1M || exit 1
check "a delay lock is taken" _slowdisk_wait 5 told "inhibit sleep pacefs delay" 1

# ---- others do not wait for the disk ----

head -c 300000 /dev/urandom >"$mnt/cut"
head -c 3904 /dev/zero >"$TEST_DIR/want"
printf end >>"$TEST_DIR/want"
sync "$mnt/cut"
slowdisk_set usb stall=1
printf x | dd of="$mnt/cut" bs=1 seek=100000 conv=notrunc status=none
sleep 1.5 # it is under way
start=$(now_ms)
check "a file is cut while a write of it waits for a silent disk" timeout 10 \
	truncate -s 4096 "$mnt/cut"
printf end | dd of="$mnt/cut" bs=1 seek=8000 conv=notrunc status=none
timeout 10 dd if="$mnt/cut" of="$TEST_DIR/cut" bs=4096 skip=1 iflag=direct status=none
check "read behind that" cmp "$TEST_DIR/want" "$TEST_DIR/cut"
check "looked up" timeout 10 test -f "$mnt/cut"
check "opened with O_TRUNC" timeout 10 dd if=/dev/null of="$mnt/cut" status=none
check_le "at once, ms" "$(elapsed_ms "$start")" 1000
slowdisk_set usb stall=0

# ---- writers on a silent disk ----

touch "$mnt"/{0..3} # a silent disk would hold their making
sync "$mnt"/{0..3}
slowdisk_set usb stall=1
writers_start
check "all writers wait for room" _slowdisk_wait 30 all_queued
sleep 1
check_eq "and nobody disturbs them" "$(answered_after 0)" 0
if [ -n "$freezer" ]; then
	freeze "${states[1]}"
	check_fails "they cannot be frozen" _slowdisk_wait 2 is_frozen
	freeze "${states[0]}"
fi

# ---- sleep ----

asleep=$(uptime_s)
say sleep
check "the lock is given back" _slowdisk_wait 5 told free 1
check "at once each writer is answered" _slowdisk_wait 2 \
	are_answered_after "$asleep"
sleep 2
check_le "and again soon, s" "$(longest_after "$asleep")" 1.5
check_ge "each" "$(answered_after "$asleep")" $((3 * WRITERS))
if [ -n "$freezer" ]; then
	freeze "${states[1]}"
	check "they can be frozen" _slowdisk_wait 10 is_frozen
	freeze "${states[0]}"
else
	skip "they can be frozen" "no freezer"
fi

# ---- awake ----

say wake
check "the lock is taken again" _slowdisk_wait 5 told "inhibit sleep pacefs delay" 2
check "they wait for room as before" _slowdisk_wait 10 all_queued
awake=$(uptime_s)
sleep 1.5
check_eq "and nobody disturbs them" "$(answered_after "$awake")" 0
slowdisk_set usb stall=0
wait "${pids[@]}"
check_eq "all end well" "$?" 0
check "umount" pacefs_stop
for ((i = 0; i < WRITERS; i++)); do
	head -c 3M /dev/zero | tr '\0' "$i" | cmp - "$src/$i" || fail "content of $i" "differs"
done
pass "the content is what was written"
[ -z "$freezer" ] || check "the freezer's group goes" _slowdisk_wait 5 rmdir "$freezer"

# ---- no bus ----

bus_down
pacefs_start "$src" "$mnt" '' -d || exit 1
check "without a bus it works all the same" touch "$mnt/x"
check_eq "and no warning is given" "$(pacefs_log | grep -ci 'warn.*sleep')" 0
check "umount" pacefs_stop
