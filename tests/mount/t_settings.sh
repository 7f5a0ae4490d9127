#!/bin/bash
# Settings as extended attributes and as mount options: names, values, who may, when they count,
# and that no copy takes them along.
# timeout: 180
# shellcheck source=../lib/mount_test.sh
. "$PACEFS_REPO/tests/lib/mount_test.sh"

src=$TEST_DIR/usb
mnt=$TEST_DIR/mnt
names="dirty_background_centisecs dirty_centisecs max_bytes min_ratio max_ratio strict_limit
	dirty_bytes dirty_ratio dirty_background_bytes dirty_background_ratio
	dirty_expire_centisecs dirty_writeback_centisecs law"
figures="write_bandwidth dirty writeback dirty_ratelimit pos_ratio writers stats flush"

# get NAME [PATH]
get() {
	getfattr --only-values -n "user.pacefs.$1" "${2:-$mnt}" 2>/dev/null
}

# set NAME VALUE [PATH]
set_to() {
	setfattr -n "user.pacefs.$1" -v "$2" "${3:-$mnt}" 2>/dev/null
}

# error_of get|set NAME [VALUE [PATH]]: the errno's name, or "none"
error_of() {
	python3 - "$@" <<-END
		import errno, os, sys
		what, name, value, path = (sys.argv[1:] + ["", "", ""])[:4]
		path = path or "$mnt"
		try:
		    if what == "set":
		        os.setxattr(path, "user.pacefs." + name, value.encode())
		    elif what == "remove":
		        os.removexattr(path, "user.pacefs." + name)
		    else:
		        os.getxattr(path, "user.pacefs." + name)
		    print("none")
		except OSError as error:
		    print(errno.errorcode[error.errno])
	END
}

listed() {
	getfattr -m - -d "$1" 2>/dev/null | grep -c 'user\.pacefs\.'
}

# log_says TEXT: since the last look
log_lines=0
log_says() {
	sleep 0.1
	pacefs_log | tail -n +$((log_lines + 1)) >"$TEST_DIR/news"
	log_lines=$(pacefs_log | wc -l)
	grep -qF -- "$1" "$TEST_DIR/news" && return 0
	echo "no '$1' in:"
	cat "$TEST_DIR/news"
	return 1
}

dirty() {
	echo $(($(pstat dirty_bytes) + $(pstat writeback_bytes)))
}

# writer MIB FILE
writer() {
	dd if=/dev/zero of="$mnt/$2" bs=128k count=$(($1 * 8)) conv=notrunc status=none
}

# In the foreground, so that its log is ours to read.
source_up usb ext4 512M 0 log="$TEST_DIR/oplog" || exit 1
mkdir -p "$src/dir"
echo x >"$src/dir/file"
setfattr -n user.mine -v kept "$src/dir/file"
pacefs_start "$src" "$mnt" "" -f || exit 1

# ---- names ----

for name in $names; do
	value=$(get "$name")
	check "$name reads" test -n "$value"
	case $name in
	dirty_bytes | dirty_background_bytes) ;; # the half of a pair that is not in use
	*) check "and takes what it read" set_to "$name" "$value" ;;
	esac
done
for name in $figures; do
	check_eq "$name reads" "$(error_of get "$name")" none
	[ "$name" = flush ] || check_eq "and is read-only" "$(error_of set "$name" 1)" EPERM
done
check_eq "unknown, read" "$(error_of get dirty_bites)" ENODATA
check_eq "unknown, written" "$(error_of set dirty_bites 1)" EINVAL
check "the log names it" log_says "no setting is named dirty_bites"
check_eq "none can be removed" "$(error_of remove max_bytes)" EPERM

for path in "$mnt" "$mnt/dir" "$mnt/dir/file" "$mnt/.pacefs"; do
	check "set on ${path#"$TEST_DIR/"}" set_to max_bytes 48M "$path"
	check_eq "and read" "$(get max_bytes "$path")" 50331648
	check "for all" set_to max_bytes 64M
	case $path in
	*/.pacefs) check_eq "all are listed there" "$(listed "$path")" \
		"$(wc -w <<<"$names $figures")" ;;
	*) check_eq "none is listed there" "$(listed "$path")" 0 ;;
	esac
done
check_eq "another attribute is listed as ever" \
	"$(getfattr --only-values -n user.mine "$mnt/dir/file" 2>/dev/null)" kept
check_eq "nothing reached the source" "$(listed "$src/dir/file") $(listed "$src")" "0 0"
check_eq ".pacefs is in no listing" "$(find "$mnt" -name .pacefs | wc -l)" 0
check "but there" test -f "$mnt/.pacefs"
check_eq "and only in the root" "$(stat "$mnt/dir/.pacefs" 2>&1 | grep -c 'No such file')" 1
check_fails "it cannot be removed" rm -f "$mnt/.pacefs" 2>/dev/null
check_fails "nor written" bash -c "echo x >$mnt/.pacefs" 2>/dev/null

# ---- values ----

for pair in max_bytes=64M:67108864 max_bytes=1G:1073741824 max_bytes=65536:65536 \
	max_bytes=0:0 dirty_background_centisecs=150:150 dirty_centisecs=500:500 \
	strict_limit=1:1 max_ratio=80:80 min_ratio=20:20; do
	name=${pair%%=*} value=${pair#*=}
	check "$name=${value%:*}" set_to "$name" "${value%:*}"
	check_eq "reads as a plain number" "$(get "$name")" "${value#*:}"
done
check "a newline at the end is fine" set_to max_bytes $'64M\n'
check_eq "as echo makes it" "$(get max_bytes)" 67108864
set_to strict_limit 0 && set_to min_ratio 0 && set_to max_ratio 100

log_says "" || true
for bad in "dirty_background_centisecs abc need 0 or 10..360000 centiseconds" \
	"dirty_background_centisecs 9 need 0 or 10..360000 centiseconds" \
	"dirty_centisecs -1 need 0 or 10..360000 centiseconds" \
	"max_bytes 4k need 0 or at least 65536 bytes" \
	"max_ratio 101 need 1..100 percent" "strict_limit 2 need 0 or 1" \
	"dirty_expire_centisecs 0 need 1..360000 centiseconds" "law windows need linux"; do
	read -r name value why <<<"$bad"
	before=$(get "$name")
	check_eq "$name=$value is refused" "$(error_of set "$name" "$value")" EINVAL
	check_eq "the value stays" "$(get "$name")" "$before"
	check "the log has the range" log_says "$name=$value rejected: $why"
done
check_eq "an empty value is refused" "$(error_of set max_bytes "")" EINVAL
check_eq "a very long one too" "$(error_of set max_bytes "$(printf '1%.0s' {1..500})")" EINVAL
check_eq "a background not below a chosen limit is refused" \
	"$(error_of set dirty_background_centisecs 500)" EINVAL
check "with both in the log" log_says \
	"dirty_background_centisecs=500 with dirty_centisecs=500 rejected"
check_eq "and stays" "$(get dirty_background_centisecs)" 150

# ---- who ----

if have setpriv; then
	# the way to here is not open to all, but being here is
	nobody() {
		(cd "$mnt" && exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@")
	}
	chmod 777 "$mnt"
	check_eq "nobody reads" "$(nobody getfattr --only-values -n user.pacefs.max_bytes . \
		2>/dev/null)" 67108864
	check "nobody may set an attribute of another name" \
		nobody setfattr -n user.other -v 1 .
	for path in . .pacefs; do
		check_fails "but not ours, on $path" \
			nobody setfattr -n user.pacefs.max_bytes -v 1M "$path" 2>/dev/null
		check_fails "nor start a flush" \
			nobody setfattr -n user.pacefs.flush -v 1 "$path" 2>/dev/null
	done
	check_eq "nothing changed" "$(get max_bytes)" 67108864
else
	skip "nobody may not set" "no setpriv"
fi

# ---- copies ----

mkdir -p "$TEST_DIR/copies"
# leaked NAME PATH: the other attribute came along, ours did not
leaked() {
	check_eq "$1 copies other attributes" \
		"$(getfattr --only-values -n user.mine "$2" 2>/dev/null)" kept
	check_eq "but not ours" "$(getfattr -R -m - -d "$TEST_DIR/copies" 2>/dev/null |
		grep -c 'user\.pacefs')" 0
}
# tmpfs has user attributes only since Linux 6.6
rm -rf "$src/copies" && mkdir "$src/copies" && mount --bind "$src/copies" "$TEST_DIR/copies"
check "cp -a" cp -a "$mnt/dir" "$TEST_DIR/copies/cp"
leaked "cp -a" "$TEST_DIR/copies/cp/file"
check "tar --xattrs" bash -c "cd '$mnt' && tar --xattrs --xattrs-include='*' -cf - dir |
	(mkdir '$TEST_DIR/copies/tar' && cd '$TEST_DIR/copies/tar' && tar --xattrs -xf -)"
leaked "tar --xattrs" "$TEST_DIR/copies/tar/dir/file"
if have rsync; then
	check "rsync -aX" rsync -aX "$mnt/dir/" "$TEST_DIR/copies/rsync/"
	leaked "rsync -aX" "$TEST_DIR/copies/rsync/file"
else
	skip "rsync -aX" "no rsync"
fi
umount "$TEST_DIR/copies"

check "umount" pacefs_stop

# ---- as options ----

pacefs_start "$src" "$mnt" "$(tr -d '\n\t' <<<"dirty_background_centisecs=70,
dirty_centisecs=300,max_bytes=32M,min_ratio=5,max_ratio=90,strict_limit,dirty_bytes=100M,
dirty_background_bytes=20M,dirty_expire_centisecs=1000,dirty_writeback_centisecs=100,law=linux")" \
	|| exit 1
got=
for name in $names; do
	got="$got$(get "$name") "
done
check_eq "every name is an option" "$got" \
	"70 300 33554432 5 90 1 104857600 0 20971520 0 1000 100 linux "
check "umount" pacefs_stop

# ---- pairs and followers ----

pacefs_start "$src" "$mnt" || exit 1
check "a background alone" set_to dirty_background_centisecs 300
check_eq "takes the limit along" "$(get dirty_centisecs)" 600
check "dirty_bytes" set_to dirty_bytes 64M
check_eq "zeroes its ratio" "$(get dirty_ratio)" 0
check_eq "and takes the background along" "$(get dirty_background_bytes)" 33554432
check "dirty_ratio" set_to dirty_ratio 40
check_eq "zeroes the bytes" "$(get dirty_bytes) $(get dirty_background_bytes)" "0 0"
check "umount" pacefs_stop

# ---- in force at once ----

slowdisk_set usb rate=20000000
pacefs_start "$src" "$mnt" dirty_centisecs=0,max_bytes=0,dirty_bytes=128M || exit 1
writer 250 live &
writer=$!
sleep 2
check_ge "without a limit much is dirty, bytes" "$(dirty)" 20000000
check "max_bytes" set_to max_bytes 8M
# The limit in force (stats: limit_bytes) comes down smoothly, so that writers above it are
# slowed and not stopped, and it holds all the way.
limit=$(pstat limit_bytes)
over=0
for _ in $(seq 30); do
	read -r now most < <(get stats |
		awk '/^(dirty|writeback)_bytes:/ { n += $2 } /^limit_bytes:/ { l = $2 } END { print n, l }')
	[ "$now" -le "$most" ] || over="$over, $now of $most"
	sleep 0.1
done
check_eq "dirty is never above the limit in force" "$over" 0
check_le "which comes down, bytes" "$(pstat limit_bytes)" $((limit * 9 / 10))
check "the writer still writes" kill -0 "$writer"
check "no limit in bytes again" set_to max_bytes 0
slowdisk_set usb rate=0
wait "$writer"
check "umount" pacefs_stop

# All off: nothing moves by itself
quiet=dirty_background_centisecs=0,dirty_centisecs=0,max_bytes=0,dirty_bytes=200M
quiet+=,dirty_background_bytes=190M,dirty_writeback_centisecs=0
pacefs_start "$src" "$mnt" "$quiet" || exit 1
writer 8 waiting
sleep 2
check_eq "with everything off nothing is written" "$(dirty)" $((8 << 20))
check "a background time" set_to dirty_background_centisecs 50
start=$(now_ms)
_slowdisk_wait 10 eval '[ "$(dirty)" -eq 0 ]'
check_le "starts the flush at once, ms" "$(elapsed_ms "$start")" 1500
check "off again" set_to dirty_background_centisecs 0
writer 4 old
check "dirty_expire_centisecs" set_to dirty_expire_centisecs 100
sleep 1.5
check_eq "without a look at old data it stays" "$(dirty)" $((4 << 20))
check "dirty_writeback_centisecs" set_to dirty_writeback_centisecs 20
start=$(now_ms)
_slowdisk_wait 10 eval '[ "$(dirty)" -eq 0 ]'
check_le "what is expired goes, ms" "$(elapsed_ms "$start")" 1500
check "expiry far away" set_to dirty_expire_centisecs 360000
writer 4 flushed
start=$(now_ms)
check "flush=1" set_to flush 1
check_le "returns at once, ms" "$(elapsed_ms "$start")" 150
_slowdisk_wait 10 eval '[ "$(dirty)" -eq 0 ]'
check_le "and starts a flush, ms" "$(elapsed_ms "$start")" 1500
check_eq "flush=2 is refused" "$(error_of set flush 2)" EINVAL
check "umount" pacefs_stop

# More than memory can hold, and a disk whose files have no device number of the disk's
umount "$src"
source_mkfs usb btrfs >/dev/null || exit 1
check "over btrfs, in front" pacefs_start "$src" "$mnt" "" -f || exit 1
check "a btrfs disk is taken for a disk" \
	grep -q "assuming 4 MB/s" <(pacefs_log)
check "a limit beyond memory is taken" set_to dirty_bytes 1000G
check "and what is in force is said" grep -q "more than memory allows" <(pacefs_log)
memory=$(($(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo) * 1024))
check_le "DirtyThresh, kB" "$(pstat DirtyThresh | cut -d' ' -f1)" $((memory / 1024))
check "umount" pacefs_stop
