#!/bin/bash
# A daemon run by an ordinary user: it can do what that user can, nobody else gets anything by it,
# and it and others' daemons keep off each other's source.
# timeout: 240
# shellcheck source=../lib/mount_test.sh
. "$PACEFS_REPO/tests/lib/mount_test.sh"

# Of base-passwd: they are on every Debian. The directory of the room is root's alone: users get
# what they need by another path.
A=65534 # nobody
B=5     # games
room=/mnt
out=$TEST_DIR/out

have setpriv || skip_all "no setpriv"
[ -u "$(command -v fusermount3)" ] || skip_all "fusermount3 is not set-user-id"
getent passwd "$A" "$B" >/dev/null || skip_all "no users to be"

# as USER command...
as() {
	local uid=$1
	shift
	setpriv --reuid "$uid" --regid "$uid" --clear-groups -- env HOME=/ "$@"
}

mounted() {
	findmnt -rn -o FSTYPE,OPTIONS --mountpoint "$1" | grep '^fuse.pacefs '
}

# start USER SOURCE MNT [OPTIONS]: 0 once it answers; the daemon goes to the background
start() {
	as "$1" "$room/pacefs" "$2" "$3" ${4:+-o "$4"} >"$out" 2>&1
}

says() {
	grep -qE -- "$1" "$out" && return 0
	echo "no '$1' in:"
	cat "$out"
	return 1
}

no_daemon() {
	! pgrep -x pacefs >/dev/null
}

stop() {
	as "$1" "$room/pacefs" umount "$2" >"$out" 2>&1
}

# ---- the room ----

source_up usb ext4 256M 50000000 || exit 1
mknod -m 666 "$TEST_DIR/fuse" c 10 229
mount --bind "$TEST_DIR/fuse" /dev/fuse || exit 1
mount --bind "$TEST_DIR" $room || exit 1
cp "$PACEFS" $room/pacefs
chmod 755 $room/pacefs
mkdir $room/ma $room/ma2 $room/mb
chown $A $room/ma $room/ma2
chown $B $room/mb

# tree DIR: files of all kinds of owners and modes below a directory of A's
tree() {
	mkdir "$1"
	(
		cd "$1" || exit 1
		for owner in 0 $A $B; do
			for mode in 600 640 644 666 400; do
				file=f-$owner-$mode
				echo "$owner" >"$file"
				chown "$owner:$owner" "$file"
				chmod "$mode" "$file"
			done
			for mode in 700 755 777 1777; do
				dir=d-$owner-$mode
				mkdir "$dir"
				touch "$dir/root" "$dir/a" "$dir/b"
				chown $A:$A "$dir/a"
				chown $B:$B "$dir/b"
				chown "$owner:$owner" "$dir"
				chmod "$mode" "$dir"
			done
		done
		cp "$(command -v id)" suid
		chmod 4755 suid
		mknod -m 666 null c 1 3
		chown $A:$A .
	)
}

# Each line, run by a user in a tree; the exit status counts. (After an rm that is refused what is
# there stays there: "test" shows that it was.)
operations() {
	local owner mode name
	for owner in 0 $A $B; do
		for mode in 600 640 644 666 400; do
			name=f-$owner-$mode
			printf '%s\n' "cat $name" "echo x >>$name" "truncate -s 1 $name" \
				"chmod 777 $name" "chown $A $name" "chown $B $name" \
				"touch -d 2001-01-01 $name" "setfattr -n user.x -v 1 $name" \
				"getfattr -n user.x $name" "ln $name l-$name" "mv $name m-$name" \
				"rm -f l-$name m-$name"
		done
		for mode in 700 755 777 1777; do
			name=d-$owner-$mode
			printf '%s\n' "ls $name" "cat $name/root" "echo x >$name/new" \
				"mkdir $name/dir" "mv $name/b $name/c" "rm -f $name/root" "test -e $name/root" \
				"rm -f $name/a" "test -e $name/a" "rm -f $name/c" "test -e $name/c" \
				"echo x >$name/b" "chmod 700 $name" "chown $B $name" "rmdir $name/dir"
		done
	done
	printf '%s\n' "mknod n c 1 3" "mknod p p" "ln -s /etc/passwd s" "rm p" \
		"head -c 1 suid" "echo x >suid"
}

# results USER DIR: "status operation" for each
results() {
	# shellcheck disable=SC2016
	operations | as "$1" sh -c 'cd "$1" && while read -r line; do
		(eval "$line") >/dev/null 2>&1 </dev/null
		echo "$(($? != 0)) $line"
	done' -- "$2"
}

# ---- what the user can do, and no more ----

tree $room/usb/direct
tree $room/usb/served
tree $room/usb/shared
check "an ordinary user mounts" start $A $room/usb/served $room/ma
check_eq "with one warning" "$(grep -c 'umount will not wait for the data' "$out")" 1
check "as plain fuse, without set-user-id and devices" \
	grep -qE 'nosuid.*nodev|nodev.*nosuid' <(mounted $room/ma)
results $A $room/usb/direct >"$TEST_DIR/direct"
results $A $room/ma >"$TEST_DIR/served"
check_ge "operations tried" "$(wc -l <"$TEST_DIR/served")" 350
check_ge "of which some are refused" "$(grep -c ^1 "$TEST_DIR/served")" 100
check_eq "by the mount each has the result that it has on the source" \
	"$(diff "$TEST_DIR/direct" "$TEST_DIR/served")" ""
check_eq "set-user-id is not honoured" "$(as $A $room/ma/suid -u)" "$A"
check_fails "nor are devices" as $A sh -c "echo x >$room/ma/null" 2>"$out"
as $A sh -c "echo new >$room/ma/new && mkdir $room/ma/newdir"
check_eq "what it makes is the user's" "$(stat -c %u:%g $room/usb/served/new $room/usb/served/newdir |
	uniq)" "$A:$A"

# ---- others ----

check_fails "others see nothing" as $B ls $room/ma 2>"$out"
check_fails "root neither" ls $room/ma 2>"$out"
check_fails "others change no setting" as $B "$room/pacefs" set $room/ma max_bytes 1M 2>"$out"
check "the user does" as $A "$room/pacefs" set $room/ma max_bytes 1M
check_fails "others do not unmount it" as $B "$room/pacefs" umount $room/ma 2>"$out"
check "it is there" mounted $room/ma
check_fails "allow_other is not to be had" start $A $room/usb/shared $room/ma2 allow_other
check "as fusermount3 says" says 'user_allow_other'

# ---- one daemon per source, whoever runs it ----

"$PACEFS" $room/usb/served $room/mb >"$out" 2>&1
check_eq "root's daemon on the same source is refused" $? 1
check "and told whose it is" says "served by another pacefs already.* by pacefs\[[0-9]+\] of user $A"
chmod 777 $room/usb/served
check_fails "another user's is refused" start $B $room/usb/served $room/mb
check "and told" says "served by another pacefs already.* of user $A"
chmod 755 $room/usb/served
check "the user unmounts" stop $A $room/ma
check "and has the verdict" says '^safe to remove: all data written, 0 errors$'
check "the daemon has ended" _slowdisk_wait 5 no_daemon

"$PACEFS" $room/usb/served $room/mb 2>/dev/null
check_fails "a user's daemon on root's source is refused" start $A $room/usb/served $room/ma
check "and told" says "served by another pacefs already.* by pacefs\[[0-9]+\] of user 0"
check "umount" umount $room/mb
check "the daemon has ended" _slowdisk_wait 5 no_daemon

check "a user's daemon" start $A $room/usb/served $room/ma
pkill -9 -x pacefs
_slowdisk_wait 5 no_daemon
check "killed: it starts again, and takes the dead mount away" start $A $room/usb/served $room/ma
check "killed: it serves" as $A test -e $room/ma/new
check "killed: umount" stop $A $room/ma

start $A $room/usb/served $room/ma
as $A cp $room/pacefs $room/ma/copy
pkill -TERM -x pacefs
check "SIGTERM: the daemon ends" _slowdisk_wait 10 no_daemon
check_fails "SIGTERM: no mount" mounted $room/ma
check "SIGTERM: the file is on the disk" cmp $room/pacefs $room/usb/served/copy

# ---- umount(8) and its helper, by the user and by root ----

mkdir "$TEST_DIR/upper" "$TEST_DIR/work"
ln -s "$room/pacefs" "$TEST_DIR/upper/umount.fuse.pacefs"
mount -t overlay -o "lowerdir=/usr/sbin,upperdir=$TEST_DIR/upper,workdir=$TEST_DIR/work" none \
	/usr/sbin || exit 1
for who in "$A" 0; do
	start $A $room/usb/served $room/ma
	as $A dd if=/dev/zero of=$room/ma/new bs=1M count=20 status=none
	as "$who" umount $room/ma >"$out" 2>&1
	check_eq "umount(8) of the user's mount by user $who" $? 0
	check "has the verdict" says '^safe to remove: all data written, 0 errors$'
	check "and the daemon has ended" no_daemon
done
start $A $room/usb/served $room/ma
"$PACEFS" umount $room/ma >"$out" 2>&1
check_eq "root may ask its daemon, and unmount it" $? 0
check "and has the verdict" says '^safe to remove: all data written, 0 errors$'
umount /usr/sbin

# ---- strangers ----

# A stranger who may read the source keeps nobody away from it.
setpriv --reuid $B --regid $B --clear-groups flock --no-fork $room/usb/served sleep 60 &
stranger=$!
_slowdisk_wait 5 grep -q "FLOCK .*:$(stat -c %i $room/usb/served) " /proc/locks
check "a stranger's lock keeps no user away" start $A $room/usb/served $room/ma
check "and is told of" says 'is locked by somebody who may not write there: ignored'
check "umount" stop $A $room/ma
check "nor root" "$PACEFS" $room/usb/served $room/ma 2>"$out"
check "umount" umount $room/ma
kill $stranger
wait $stranger 2>/dev/null

# ---- shared with others ----

cp /etc/fuse.conf "$TEST_DIR/fuse.conf"
echo user_allow_other >>"$TEST_DIR/fuse.conf"
mount --bind "$TEST_DIR/fuse.conf" /etc/fuse.conf || exit 1
rm -r $room/usb/direct
tree $room/usb/direct
check "with allow_other" start $A $room/usb/shared $room/ma allow_other
results $B $room/usb/direct >"$TEST_DIR/direct"
results $B $room/ma >"$TEST_DIR/served"
check_eq "others can do nothing by it that they cannot do on the source" \
	"$(diff "$TEST_DIR/direct" "$TEST_DIR/served" | grep '^> 0' | grep -v ' test -e ')" ""
check_ge "but a good deal" "$(grep -c ^0 "$TEST_DIR/served")" 50
as $B "$room/pacefs" set $room/ma max_bytes 1M 2>"$out"
check_eq "others change no setting" $? 1
check "and are told who may" says 'only root and the owner'
as $B sh -c "umask 0; cp $room/ma/suid $room/ma/d-0-777/mine; chmod 4777 $room/ma/d-0-777/mine" 2>/dev/null
check_fails "nor get the user's rights by a set-user-id file" \
	test -u $room/usb/shared/d-0-777/mine
check "root may" "$PACEFS" set $room/ma max_bytes 2M
check "umount" stop $A $room/ma
umount /etc/fuse.conf

_slowdisk_wait 5 no_daemon
check "no daemon is left" no_daemon
umount /dev/fuse $room
