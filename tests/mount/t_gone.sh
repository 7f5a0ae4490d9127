#!/bin/bash
# A disk that is pulled while it is written: writers fail at once, names still answer, umount returns
# within seconds and the verdict names what was not written; and one that comes back recovers.
# timeout: 300
# shellcheck source=../lib/mount_test.sh
. "$PACEFS_REPO/tests/lib/mount_test.sh"

# PACEFS_GONE_MB: how much each writer writes; PACEFS_GONE_SOURCES: to what
mb=${PACEFS_GONE_MB:-60}
sources=${PACEFS_GONE_SOURCES:-ext4 nojournal xfs btrfs raw killed back}
src=$TEST_DIR/usb
mnt=$TEST_DIR/mnt
opts=dirty_background_centisecs=20,dirty_centisecs=100

# Two writers (one for raw), and one more open file. Each writer's error, in ms since the disk was
# pulled, which the time of a file says; then what fsync and close say.
cat >"$TEST_DIR/gone.py" <<'END'
import errno, os, sys, threading, time
from ask import result
mb, pulled, names = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
fds = [os.open(n, os.O_RDWR | os.O_CREAT, 0o644) for n in names]
second = os.open(names[0], os.O_RDWR)
def write(i):
    data = os.urandom(1 << 20)
    n = 0
    try:
        while n < mb << 20:
            n += os.pwrite(fds[i], data, n)
        print("writer", i, "never failed")
    except OSError as e:
        now = time.time()
        late = now - os.stat(pulled).st_mtime if os.path.exists(pulled) else -1
        print("error", int(late * 1000), errno.errorcode[e.errno], flush=True)
threads = [threading.Thread(target=write, args=(i,)) for i in range(len(fds))]
[t.start() for t in threads]
[t.join() for t in threads]
print("again", result(os.pwrite, fds[0], b"x", 0))
print("fsync", *(result(os.fsync, f) for f in fds + [second]))
print("close", *(result(os.close, f) for f in fds + [second]))
END

# when a third of it was written
pull() {
	local i written
	for ((i = 0; i < 600; i++)); do
		written=$("$PACEFS" stats "$mnt" | sed -n 's/^written_bytes: //p')
		[ "${written:-0}" -ge $((mb * 333333)) ] && break
		sleep 0.05
	done
	touch "$TEST_DIR/pulled"
	if [ "$1" = killed ]; then
		kill -9 "$(<"$SLOWDISK_DIR/usb/nbdfuse.pid")"
	else
		slowdisk_set usb vanish=1
	fi
}

source_make() {
	case $1 in
	raw) slowdisk_up usb 1500M 50000000 ;;
	nojournal | back)
		slowdisk_up usb 1500M 0 &&
			mkfs.ext4 -qF -O ^has_journal -E nodiscard,lazy_itable_init=0 "${DEV[usb]}" &&
			mkdir -p "$src" && mount "${DEV[usb]}" "$src" && slowdisk_set usb rate=50000000
		;;
	killed) source_up usb ext4 1500M 50000000 ;;
	*) source_up usb "$1" 1500M 50000000 ;;
	esac
}

figure() {
	sed -n "s/^$1: //p" "$TEST_DIR/stats"
}

# The disk is there again: writes go through to it, then they are buffered as before.
comes_back() {
	local i
	slowdisk_set usb vanish=0
	for ((i = 0; i < 150; i++)); do
		sleep 0.1
		head -c 1M /dev/urandom >"$TEST_DIR/new" || return
		cp "$TEST_DIR/new" "$mnt/new" 2>/dev/null && [ "$(pstat health)" = healthy ] && break
	done
	check_eq "back: it recovers" "$(pstat health)" healthy
	check "back: and takes new files" cmp "$TEST_DIR/new" "$mnt/new"
}

named_bytes() {
	python3 -c '
import re, sys
n = 0
for line in sys.stdin:
    if "pacefs: not written: " in line:
        for a, b in re.findall(r"(0x[0-9a-f]+)-(0x[0-9a-f]+)", line):
            n += int(b, 16) - int(a, 16)
print(n)'
}

# Every lost byte is named, by few lines.
check_verdict() {
	local kind=$1 log=$TEST_DIR/log bytes
	pacefs_log "$mnt" >"$log"
	tail -n 5 "$log" | cut -c 1-300
	bytes=$(sed -n 's/.* \([0-9]*\) bytes in .*/\1/p' "$log" | tail -n 1)
	check_ge "$kind: bytes not written" "${bytes:-0}" 1000000
	check_eq "$kind: the ranges named are as many bytes" "$(named_bytes <"$log")" "$bytes"
	check_le "$kind: lines of log" "$(wc -l <"$log")" 60
	check "$kind: pacefs umount names them" grep -q 'not written: ' "$TEST_DIR/umount.out"
}

gone() {
	local kind=$1 out=$TEST_DIR/out pid writer start ms last
	local -a names=("$mnt/a" "$mnt/b")
	rm -f "$TEST_DIR/pulled"
	source_make "$kind" || fail "$kind: a disk" "see above" || return
	if [ "$kind" = raw ]; then
		pacefs_start "${DEV[usb]}" "$mnt" "$opts,raw" -f || return
		names=("$mnt/$(ls "$mnt")")
	else
		mkdir "$src/d" && touch "$src/d/name"
		pacefs_start "$src" "$mnt" "$opts" -f || return
	fi
	pid=${PACEFS_PID[$mnt]}
	timeout 60 python3 "$TEST_DIR/gone.py" "$mb" "$TEST_DIR/pulled" "${names[@]}" >"$out" 2>&1 &
	writer=$!
	pull "$kind"
	start=$(now_ms)
	timeout 20 ls -l "$mnt" >/dev/null 2>&1
	check_le "$kind: ls answers, ms" "$(elapsed_ms "$start")" 5000
	check "$kind: the writers end" wait "$writer"
	cat "$out"
	last=$(awk '$1 == "error" { print $2 }' "$out" | sort -n | tail -n 1)
	check_eq "$kind: all of them fail" "$(grep -c '^error .*\(EIO\|EROFS\)' "$out")" ${#names[@]}
	check_between "$kind: the last after, ms" "${last:-never}" 0 10000
	check "$kind: a write after that fails" grep -Eq '^again (EIO|EROFS)' "$out"
	check_eq "$kind: each open file is told" \
		"$(sed -n 's/^fsync //p' "$out" | tr ' ' '\n' | sort -u)" EIO
	# It is looked for a second time before it is given up.
	for ((i = 0; i < 50; i++)); do
		"$PACEFS" stats "$mnt" >"$TEST_DIR/stats"
		[ "$(figure health)" != gone ] || break
		sleep 0.1
	done
	check_eq "$kind: the device is said to be gone" "$(figure health)" gone
	check "$kind: by status too" sh -c "'$PACEFS' status '$mnt' | grep 'device gone'"
	check_eq "$kind: nothing is kept" "$(figure dirty_bytes)" 0
	[ "$kind" != back ] || comes_back
	start=$(now_ms)
	timeout 30 "$PACEFS" umount "$mnt" >"$TEST_DIR/umount.out" 2>&1
	check_eq "$kind: pacefs umount says so" $? 1
	check_eq "$kind: and has heard the daemon's last word" "$(find /run/pacefs -name 'lost-*')" ""
	ms=$(elapsed_ms "$start")
	check_le "$kind: after, ms" "$ms" 10000
	pacefs_wait "$mnt"
	check_eq "$kind: the daemon exits 1" "$PACEFS_STATUS" 1
	[ "$kind" != back ] || check "back: which are there" cmp "$TEST_DIR/new" "$src/new"
	check_fails "$kind: and is gone" kill -0 "$pid" 2>/dev/null
	check_verdict "$kind"
	echo "figures: $kind: last error $last ms, umount $ms ms"
	slowdisk_set usb vanish=0
	source_down usb
}

for kind in $sources; do
	gone "$kind"
done
