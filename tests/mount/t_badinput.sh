#!/bin/bash
# What cannot work is refused in one line with exit status 1 and nothing mounted; what is merely
# missing is said once, and the rest still works.
# shellcheck source=../lib/mount_test.sh
. "$PACEFS_REPO/tests/lib/mount_test.sh"

src=$TEST_DIR/src
mnt=$TEST_DIR/mnt
out=$TEST_DIR/out
mkdir -p "$src/below" "$mnt" "$TEST_DIR/full/x" "$TEST_DIR/run"
: >"$TEST_DIR/plain"
: >"$TEST_DIR/empty file"
head -c 1M /dev/zero >"$TEST_DIR/image"
before=$(findmnt -rn -o TARGET,FSTYPE)

says() {
	grep -qE -- "$1" "$out" && return 0
	echo "no '$1' in:"
	cat "$out"
	return 1
}

# refused NAME PATTERN words...: pacefs words...
refused() {
	local name=$1 pattern=$2 status
	shift 2
	timeout 20 "$PACEFS" "$@" >"$out" 2>&1 </dev/null
	status=$?
	check_eq "$name: exit status" "$status" 1
	check_eq "$name: one line" "$(wc -l <"$out")" 1
	check "$name: says why" says "$pattern"
	check_eq "$name: nothing is mounted" "$(findmnt -rn -o TARGET,FSTYPE)" "$before"
	check_eq "$name: no daemon" "$(pgrep -cx pacefs)" 0
}

# ---- source and mountpoint ----

refused "no source" "$src/nowhere: No such file or directory; the source must be" \
	"$src/nowhere" "$mnt"
refused "a file as source" "plain is not a directory; .* -o raw" "$TEST_DIR/plain" "$mnt"
refused "a character device as source" "/dev/null is not a directory" /dev/null "$mnt"
refused "a directory with raw" "needs a block device or an image file" "$src" "$mnt" -o raw
refused "a character device with raw" "needs a block device or an image file" \
	/dev/null "$mnt" -o raw
refused "no mountpoint" "mountpoint $TEST_DIR/nowhere does not exist: create it" \
	"$src" "$TEST_DIR/nowhere"
refused "a mountpoint that is not empty" \
	"mountpoint $TEST_DIR/full is not empty, and is not the source" "$src" "$TEST_DIR/full"
refused "a file as mountpoint" "mountpoint $TEST_DIR/plain is not a directory" \
	"$src" "$TEST_DIR/plain"
refused "a mountpoint inside the source" "lies inside the source $src: choose one outside" \
	"$src" "$src/below"
refused "a file that is not empty for raw" "is not empty" "$TEST_DIR/empty file" \
	"$TEST_DIR/image" -o raw
refused "one word" "unknown command nonsense" nonsense
refused "one path" "need SOURCE and MOUNTPOINT, got 1 word" "$src"
refused "three paths" "need SOURCE and MOUNTPOINT, got 3 words" "$src" "$mnt" "$mnt"
refused "nothing" "need SOURCE and MOUNTPOINT, got 0 words: see pacefs --help"

# ---- options ----

refused "an unknown option" "unknown option dirty_centisec: did you mean dirty_centisecs\?" \
	"$src" "$mnt" -o dirty_centisec=5
refused "one like nothing else" "unknown option qqqqqqqqqqqq: see pacefs --help" \
	"$src" "$mnt" -o qqqqqqqqqqqq
refused "a background not below the limit" \
	"dirty_background_centisecs=300 with dirty_centisecs=300 rejected: need the background below" \
	"$src" "$mnt" -o dirty_background_centisecs=300,dirty_centisecs=300
refused "the same in bytes" "dirty_background_bytes=67108864 with dirty_bytes=33554432 rejected" \
	"$src" "$mnt" -o dirty_background_bytes=64M,dirty_bytes=32M
refused "min above max" "min_ratio=60 with max_ratio=50 rejected" \
	"$src" "$mnt" -o min_ratio=60,max_ratio=50
refused "a value out of range" "max_bytes=1K rejected: need 0 or at least 65536 bytes" \
	"$src" "$mnt" -o max_bytes=1K
refused "no value" "option max_bytes needs a value" "$src" "$mnt" -o max_bytes
refused "a value too many" "option raw takes no value" "$src" "$mnt" -o raw=1
refused "a small cache" "cache_size=1M rejected: need at least 4194304" \
	"$src" "$mnt" -o cache_size=1M
refused "a request size" "max_write=100K rejected: need a power of two" \
	"$src" "$mnt" -o max_write=100K
refused "an io engine" "io_engine=aio rejected: need uring or sync" \
	"$src" "$mnt" -o io_engine=aio
refused "io=direct" "not supported yet" "$src" "$mnt" -o io=direct
refused "remount" "remount changes nothing here: use pacefs set" "$src" "$mnt" -o remount
refused "a letter" "invalid option" "$src" "$mnt" -q

# ---- already served ----

pacefs_start "$src" "$mnt" || exit 1
mkdir "$TEST_DIR/second"
timeout 20 "$PACEFS" "$src" "$TEST_DIR/second" >"$out" 2>&1
check_eq "a source that is served already: exit status" $? 1
check_eq "a source that is served already: one line" "$(wc -l <"$out")" 1
check "a source that is served already: says by whom" grep -q \
	"$src is served by pacefs on $mnt already (pid ${PACEFS_PID[$mnt]})" "$out"
check_eq "a source that is served already: nothing is mounted" \
	"$(findmnt -rn --mountpoint "$TEST_DIR/second" | wc -l)" 0
check "the first one works" cp "$TEST_DIR/image" "$mnt/works"
check "and ends well" pacefs_stop

# ---- no /dev/fuse ----

# hide PATH by PATH: in a mount namespace of its own
hidden() {
	local what=$1 by=$2
	shift 2
	unshare -m --propagation private sh -c 'mount --bind "$0" "$1" && shift && exec "$@"' \
		"$by" "$what" "$@"
}
hidden /dev/fuse "$TEST_DIR/empty file" timeout 20 "$PACEFS" "$src" "$mnt" >"$out" 2>&1
check_eq "no /dev/fuse: exit status" $? 1
check_eq "no /dev/fuse: one line" "$(wc -l <"$out")" 1
check "no /dev/fuse: says what to load" grep -q \
	'^pacefs: /dev/fuse is missing: load the kernel module (modprobe fuse)$' "$out"
hidden /dev "$TEST_DIR/run" timeout 20 "$PACEFS" "$src" "$mnt" >"$out" 2>&1
check_eq "no /dev at all: exit status" $? 1
check "no /dev at all: says what to load" grep -q \
	'^pacefs: /dev/fuse is missing: load the kernel module (modprobe fuse)$' "$out"
check_eq "no /dev at all: one line" "$(wc -l <"$out")" 1
check_eq "nothing is mounted" "$(findmnt -rn -o TARGET,FSTYPE)" "$before"

# ---- no loop devices ----

works() {
	cp "$TEST_DIR/image" "$mnt/$1" && cmp "$TEST_DIR/image" "$mnt/$1"
}

mount --bind "$TEST_DIR/empty file" /dev/loop-control
pacefs_start "$src" "$mnt" || exit 1
pacefs_log >"$out"
check_eq "no loop devices: one warning" "$(grep -c 'umount will not wait' "$out")" 1
check "no loop devices: says what to use" grep -qE \
	"umount will not wait for the data \(no loop device: .*\); use: pacefs umount $mnt$" "$out"
check_eq "no loop devices: warning and start are two lines" "$(wc -l <"$out")" 2
check_eq "no loop devices: plain fuse" "$(findmnt -rn -o FSTYPE --mountpoint "$mnt")" fuse.pacefs
check_eq "no loop devices: under the source's name" \
	"$(findmnt -rn -o SOURCE --mountpoint "$mnt")" "$src"
check "no loop devices: it works" works plain
daemon=${PACEFS_PID[$mnt]}
check_eq "no loop devices: pacefs umount" "$("$PACEFS" umount "$mnt" 2>/dev/null)" \
	"safe to remove: all data written, 0 errors"
check_fails "no loop devices: tells the truth: the daemon has ended" \
	test -e "/proc/$daemon/fd/0"
check "no loop devices: and the data are there" cmp "$TEST_DIR/image" "$src/plain"
pacefs_wait
check_eq "no loop devices: status" "$PACEFS_STATUS" 0
pacefs_start "$src" "$mnt" || exit 1
check "no loop devices: it works again" works plain2
check "no loop devices: umount(8)" umount "$mnt"
check "no loop devices: the daemon still writes" pacefs_wait
check_eq "no loop devices: and exits" "$PACEFS_STATUS" 0
check "no loop devices: with all data" cmp "$TEST_DIR/image" "$src/plain2"
umount /dev/loop-control

# ---- no io_uring ----

# A filter of its own for each system call: the daemon inherits it.
cat >"$TEST_DIR/without_io_uring" <<'END'
#!/usr/bin/env python3
import ctypes, os, struct, sys
numbers = (425, 426, 427) # io_uring_setup, _enter, _register: the same everywhere
code = [struct.pack("HBBI", 0x20, 0, 0, 0)] # load the number
for i, number in enumerate(numbers):
    code.append(struct.pack("HBBI", 0x15, len(numbers) - i, 0, number))
code.append(struct.pack("HBBI", 0x06, 0, 0, 0x7fff0000)) # allow
code.append(struct.pack("HBBI", 0x06, 0, 0, 0x00050000 | 38)) # ENOSYS
program = ctypes.create_string_buffer(b"".join(code))
prog = struct.pack("HxxxxxxP", len(code), ctypes.addressof(program))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.create_string_buffer(prog), 0, 0):
    sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
os.execv(os.environ["REAL_PACEFS"], ["pacefs"] + sys.argv[1:])
END
chmod +x "$TEST_DIR/without_io_uring"
export REAL_PACEFS=$PACEFS
PACEFS=$TEST_DIR/without_io_uring
if pacefs_start "$src" "$mnt"; then
	pacefs_log >"$out"
	check_eq "no io_uring: one warning" "$(grep -c 'io_uring is not to be had' "$out")" 1
	check_eq "no io_uring: warning and start are two lines" "$(wc -l <"$out")" 2
	check_eq "no io_uring: in use is" "$(pstat io)" "sync,"
	check "no io_uring: it works" works synchronous
	check "no io_uring: umount" pacefs_stop
	check "no io_uring: the data are there" cmp "$TEST_DIR/image" "$src/synchronous"
else
	fail "no io_uring" "it does not mount"
fi
PACEFS=$REAL_PACEFS
check_eq "nothing is left mounted" "$(findmnt -rn -o TARGET,FSTYPE)" "$before"
