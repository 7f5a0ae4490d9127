#!/bin/bash
# Times and sizes: what stat shows while a file is dirty, on its way or clean, after umount in the
# source, and after another mount; on a source with fine times and on one with whole seconds only.
# What rsync, tar and cp make of it. After an fsync also a power cut keeps a time that was set.
# timeout: 300
# shellcheck source=../lib/mount_test.sh
. "$PACEFS_REPO/tests/lib/mount_test.sh"

src=$TEST_DIR/usb
mnt=$TEST_DIR/mnt
times=$PACEFS_REPO/tests/mount/times.py

# sends NAME FROM TO: how many files rsync would send
sends() {
	check_eq "$1" "$(rsync -aHX --out-format='%i %n' "$2/" "$3/" && echo nothing)" nothing
}

# An own tree to copy, with times of all kinds.
tree() {
	mkdir -p "$1/d/e"
	python3 - "$1" <<'END'
import os, random, sys
rng = random.Random(3)
for i in range(120):
    path = os.path.join(sys.argv[1], rng.choice(["", "d", "d/e"]), f"f{i}")
    with open(path, "wb") as f:
        f.write(rng.randbytes(rng.choice([0, 1, 5000, 70000])))
    when = rng.randrange(3 * 10**8, 2 * 10**9) * 10**9 + rng.randrange(10**9)
    os.utime(path, ns=(when, when))
os.symlink("f1", os.path.join(sys.argv[1], "link"))
os.utime(os.path.join(sys.argv[1], "link"), ns=(10**18, 10**18), follow_symlinks=False)
END
}

# The copying programs; coarse sources cannot have the times of a fine one, so there the copy of a
# copy is looked at.
programs() {
	local kind=$1 from=$2
	rsync -aHX "$from/" "$mnt/rsync/"
	sends "$kind: rsync again sends nothing" "$from" "$mnt/rsync"
	pacefs flush "$mnt" >/dev/null 2>&1 || "$PACEFS" flush "$mnt" >/dev/null
	sends "$kind: nor when all is written" "$from" "$mnt/rsync"
	cp -a "$from" "$mnt/cp"
	mkdir "$mnt/tar" && tar -C "$from" -c . | tar -C "$mnt/tar" -xp
	sends "$kind: what cp -a has copied is the same for it" "$from" "$mnt/cp"
	sends "$kind: what tar has unpacked too" "$from" "$mnt/tar"
}

for kind in "ext4" "ext4 -I 128"; do
	read -r fs args <<<"$kind"
	coarse=
	[ "$kind" = ext4 ] || coarse=coarse
	slowdisk_up usb 400M 0 || exit 1
	# shellcheck disable=SC2086 # words
	mkfs.$fs -qF $args -E nodiscard,lazy_itable_init=0,lazy_journal_init=0 "${DEV[usb]}" 2>/dev/null
	mkdir -p "$src" "$mnt" && mount "${DEV[usb]}" "$src" || exit 1
	pacefs_start "$src" "$mnt" || exit 1
	timeout 90 python3 "$times" "$src" "$mnt" "$SLOWDISK_DIR/usb/ctl" $coarse |
		sed "s/^\(ok\|not ok\) /&$kind: /" | tee "$TEST_DIR/out"
	grep -q "^ok" "$TEST_DIR/out" && ! grep "^not ok" "$TEST_DIR/out" >/dev/null ||
		failures=$((failures + 1))
	if [ "$coarse" ]; then
		mkdir "$TEST_DIR/whole" && mount -t tmpfs none "$TEST_DIR/whole"
		tree "$TEST_DIR/whole"
		find "$TEST_DIR/whole" -type f -print0 | while IFS= read -rd '' f; do
			touch -d "@$(stat -c %Y "$f")" "$f"
		done
		programs "$kind" "$TEST_DIR/whole"
	else
		mkdir "$TEST_DIR/fine" && mount -t tmpfs none "$TEST_DIR/fine"
		tree "$TEST_DIR/fine"
		programs "$kind" "$TEST_DIR/fine"
	fi
	check_eq "$kind: nobody else has changed anything" \
		"$(pstat foreign_changes) $(pstat foreign_collisions)" "0 0"
	python3 "$times" --keep "$mnt" "$TEST_DIR/seen"
	check "$kind: umount" pacefs_stop
	umount "$src" && mount "${DEV[usb]}" "$src"
	check "$kind: times and sizes in the source" python3 "$times" --same "$src" "$TEST_DIR/seen"
	pacefs_start "$src" "$mnt" || exit 1
	check "$kind: and in another mount" python3 "$times" --same "$mnt" "$TEST_DIR/seen"
	from=$TEST_DIR/${coarse:+whole}
	[ "$coarse" ] || from=$TEST_DIR/fine
	sends "$kind: rsync sends nothing there either" "$from" "$mnt/rsync"
	pacefs_stop
	source_down usb
done

# ---- a power cut ----

source_up usb ext4 64M 0 || exit 1
pacefs_start "$src" "$mnt" || exit 1
touch -d '2001-02-03 04:05:06.789' "$TEST_DIR/when"
head -c 300000 /dev/urandom >"$mnt/a"
touch -r "$TEST_DIR/when" "$mnt/a"
check "fsync of a file with a time of its own" sync "$mnt/a"
# What the disk has now, without the kernel's cache of it.
cp "$SLOWDISK_DIR/usb/nbd/disk" "$TEST_DIR/image" 2>/dev/null ||
	cp "$(losetup -n -O BACK-FILE "${DEV[usb]}")" "$TEST_DIR/image"
mkdir "$TEST_DIR/after" && mount -o loop "$TEST_DIR/image" "$TEST_DIR/after"
check_eq "it has that time after a power cut" \
	"$(stat -c '%y %s' "$TEST_DIR/after/a")" "$(stat -c '%y' "$TEST_DIR/when") 300000"
umount "$TEST_DIR/after" "$TEST_DIR/whole" "$TEST_DIR/fine"
