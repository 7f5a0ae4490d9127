#!/bin/bash
# Many names: what the daemon keeps of files that nobody uses, in memory and in descriptors, over
# sources with file handles in the nodeid (ext4), with longer ones (btrfs) and without any.
# NAMES: files of the tree.
. "$PACEFS_REPO/tests/lib/mount_test.sh"

NAMES=${NAMES:-12000}
LIMIT=1024 # of descriptors, a common one

# ---- helpers ----

rss_kb() {
	awk '/^VmRSS:/ { print $2 }' "/proc/${PACEFS_PID[$1]}/status"
}

fds_of() {
	find "/proc/${PACEFS_PID[$1]}/fd" -mindepth 1 | wc -l
}

# tree DIRECTORY: NAMES empty files, 500 to a directory
tree() {
	python3 - "$1" "$NAMES" <<'PY'
import os, sys
top, count = sys.argv[1], int(sys.argv[2])
for i in range(count):
    d = f"{top}/d{i // 5000}/e{i // 500}"
    if i % 500 == 0:
        os.makedirs(d)
    os.close(os.open(f"{d}/file-number-{i}", os.O_CREAT | os.O_WRONLY))
PY
}

names_of() {
	(cd "$1" && find . -printf '%y %i %n %s %p\n' | sort) # each one is asked for its attributes
}

plain_up() { # NAME FS: a quick source that is a file; mkfs has many inodes
	local dir=$TEST_DIR/$1
	mkdir -p "$dir"
	truncate -s $((NAMES * 4 / 1000 + 300))M "$dir.img"
	case $2 in
	ext4) mkfs.ext4 -q -N $((NAMES + NAMES / 10 + 8000)) "$dir.img" ;;
	*) "mkfs.$2" -q "$dir.img" ;;
	esac && mount -o loop "$dir.img" "$dir"
}

# The kernel keeps all of its inodes between the passes.
memory_of() { # NAME SOURCE
	local name=$1 src=$2 mnt=$TEST_DIR/mnt_$1 kb=() before
	mkdir -p "$mnt"
	tree "$src"
	names_of "$src" >"$TEST_DIR/want"
	sleep 3 # who changed a moment ago stays whole
	check "$name: mounts" pacefs_start "$src" "$mnt" || exit 1
	find "$mnt" -maxdepth 1 >/dev/null
	before=$(rss_kb "$mnt")
	for pass in 1 2 3; do
		names_of "$mnt" >"$TEST_DIR/got"
		check "$name: pass $pass: all names, numbers, sizes" cmp "$TEST_DIR/want" "$TEST_DIR/got"
		kb+=("$(rss_kb "$mnt")")
	done
	# 6000 KiB: the nodes that stay whole, buffers of directories, threads; of a small tree too.
	check_le "$name: 300 bytes for a file" $(((kb[0] - before - 6000) * 1024 / NAMES)) 300
	check_le "$name: no growth from pass 2 to 3, KiB" $((kb[2] - kb[1])) $((NAMES * 20 / 1024 + 2500)) # buffers, threads
	echo "$name: $(((kb[0] - before) * 1024 / NAMES)) $(((kb[1] - before) * 1024 / NAMES))" \
		"$(((kb[2] - before) * 1024 / NAMES)) bytes for a file of $NAMES;" \
		"$(fds_of "$mnt") descriptors"
	check_le "$name: descriptors" "$(fds_of "$mnt")" 9000
	check "$name: is unmounted" pacefs_stop "$mnt"
}

# ---- with handles ----

check "ext4 is there" plain_up ext4 ext4
memory_of ext4 "$TEST_DIR/ext4"
umount "$TEST_DIR/ext4"
check "btrfs is there" plain_up btrfs btrfs
memory_of btrfs "$TEST_DIR/btrfs"
umount "$TEST_DIR/btrfs"

# ---- without handles, and few descriptors ----

# Making files of handles takes a capability; as a user, and on FAT and others, there is none.
PROGRAM=$PACEFS
PACEFS=$TEST_DIR/without
cat >"$PACEFS" <<END
#!/bin/bash
ulimit -n $LIMIT && exec setpriv --bounding-set -dac_read_search -- "$PROGRAM" "\$@"
END
chmod +x "$PACEFS"
check "ext4 is there again" plain_up again ext4
memory_of again "$TEST_DIR/again"
src=$TEST_DIR/again
mnt=$TEST_DIR/mnt_again
check "mounts once more" pacefs_start "$src" "$mnt" || exit 1

# py NAME CODE: with a busy() that lets the daemon forget about everything else
py() {
	check "$1" python3 -c "
import ctypes, os, sys
os.chdir('$mnt')
def busy():
    for top, dirs, files in os.walk('$mnt/d0'):
        for name in files:
            os.lstat(os.path.join(top, name))
    for top, dirs, files in os.walk('$mnt/d1'):
        for name in files:
            os.lstat(os.path.join(top, name))
def put(name, text):
    with open(name, 'w') as f:
        f.write(text)
def equal(a, b):
    if a != b:
        sys.exit(f'{a!r} is not {b!r}')
def exchange(a, b):
    if ctypes.CDLL(None).renameat2(-100, a.encode(), -100, b.encode(), 2):
        sys.exit('no exchange')
def number(fd):
    return os.fstat(fd).st_ino
$2"
	check_le "$1: descriptors" "$(fds_of "$mnt")" $((LIMIT / 2))
}

# A working directory is not looked up again: the daemon itself must find it.
py "a working directory whose parents were renamed is found again" "
os.makedirs('a/b/c/d')
put('a/b/c/d/text', 'deep')
fd = os.open('a/b/c/d', os.O_PATH)
busy()
os.rename('a/b', 'a/bb')
os.rename('a', 'aa')
busy()
equal(os.listdir(f'/proc/self/fd/{fd}'), ['text'])
os.chdir(fd)
put('text2', 'deep')
os.chdir('$mnt')
equal(sorted(os.listdir('aa/bb/c/d')), ['text', 'text2'])"
py "two directories that were exchanged are told apart" "
os.mkdir('x')
os.mkdir('y')
put('x/of-x', '')
put('y/of-y', '')
x, y = os.open('x', os.O_PATH), os.open('y', os.O_PATH)
busy()
exchange('x', 'y')
busy()
equal(os.listdir(f'/proc/self/fd/{x}'), ['of-x'])
equal(os.listdir(f'/proc/self/fd/{y}'), ['of-y'])"
py "a file is found by another of its names when one is gone" "
put('one', 'linked')
os.link('one', 'two')
ino = os.lstat('one').st_ino
fd = os.open('one', os.O_PATH)
busy()
equal(os.lstat('two').st_ino, ino)
busy()
os.unlink('one')
busy()
equal(os.lstat('two').st_ino, ino)
equal(number(fd), ino)
equal(open('two').read(), 'linked')"
py "a file that was replaced is not taken for the other" "
put('old', 'old')
put('new', 'new')
fd = os.open('old', os.O_RDONLY)
busy()
os.rename('new', 'old')
busy()
equal(os.read(fd, 10), b'old')
equal(os.fstat(fd).st_nlink, 0)
equal(open('old').read(), 'new')"
py "what others put in its place is another file" "
put('place', 'first')
os.mkdir('spot')
fd = os.open('spot', os.O_PATH)
for i in range(1000): # closed, but still whole
    os.lstat(f'd0/e{i // 500}/file-number-{i}')
for name in 'place', 'spot':
    os.rename(f'$src/{name}', f'$src/elsewhere-{name}')
with open('$src/place', 'w') as f:
    f.write('second')
os.mkdir('$src/spot')
open('$src/spot/not-mine', 'w').close()
import time
time.sleep(1.1)
try:
    equal(os.listdir(f'/proc/self/fd/{fd}'), [])
except OSError as e:
    equal(e.errno, 116)
time.sleep(1.1)
equal(open('place').read(), 'second')"
py "what others wrote to it while nobody used it is read" "
import time
put('$src/read', 'before') # no page of it is kept
time.sleep(2.5)
equal(open('read').read(), 'before')
time.sleep(2.5)
busy()
with open('$src/read', 'r+') as f:
    f.write('behind')
time.sleep(1.1)
equal(open('read').read(), 'behind')"
py "5000 files at once, read again" "
os.mkdir('many')
for i in range(5000):
    put(f'many/{i}', f'text {i}')
busy()
for i in range(5000):
    equal(open(f'many/{i}').read(), f'text {i}')"
check "no descriptor was missing" test "$(pacefs_log "$mnt" | grep -ci 'too many open')" -eq 0
check "is unmounted" pacefs_stop "$mnt"
for i in 0 2500 4999; do
	check_eq "file $i is below" "$(cat "$src/many/$i")" "text $i"
done
umount "$src"
