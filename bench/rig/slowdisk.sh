# slowdisk.sh - slow block devices without a kernel module: a disk in RAM (the nbdkit plugin
# slowdisk.so), nbdfuse, a loop device. Source it; needs root, bash, nbdkit, nbdfuse.
#
#   slowdisk_up NAME SIZE RATE [key=value...]   RATE in bytes/s; sets DEV[NAME]=/dev/loopN
#   slowdisk_set NAME key=value...              at run time; keys: see slowdisk_plugin.c
#   slowdisk_sectors NAME                       sectors written so far, by the kernel's count
#   slowdisk_down NAME                          unmounts what is mounted from it, takes it away
#   slowdisk_down_all                           for exit traps; fine to call at any time
#
# SLOWDISK_PLUGIN: the plugin's file (default: slowdisk.so of the build directory).
# SLOWDISK_DIR: where the state lives (default: a new directory under TMPDIR).
#
# The loop device is released by the kernel when its last user is gone (a small process holds
# it here), so nothing stays behind even when everything is killed.
# shellcheck shell=bash

declare -gA DEV
SLOWDISK_DIR=${SLOWDISK_DIR:-}
SLOWDISK_PLUGIN=${SLOWDISK_PLUGIN:-${PACEFS_BUILD:-build}/bench/slowdisk.so}

# _slowdisk_wait SECONDS command...: until the command succeeds
_slowdisk_wait() {
	local tries=$(($1 * 50))
	shift
	while ! "$@"; do
		[ $((tries--)) -gt 0 ] || return 1
		sleep 0.02
	done
}

_slowdisk_gone() {
	! kill -0 "$1" 2>/dev/null
}

_slowdisk_detached() {
	[ ! -e "/sys/block/${1##*/}/loop" ]
}

# _slowdisk_there PIDFILE command...: the command succeeds, or waiting for it is in vain
_slowdisk_there() {
	local pid
	pid=$(<"$1")
	shift
	"$@" || _slowdisk_gone "$pid"
}

# _slowdisk_kill PIDFILE: ends the process named there and waits for it
_slowdisk_kill() {
	local pid
	[ -s "$1" ] && pid=$(<"$1") || return 0
	kill "$pid" 2>/dev/null
	_slowdisk_wait 3 _slowdisk_gone "$pid" || kill -9 "$pid" 2>/dev/null
	_slowdisk_wait 3 _slowdisk_gone "$pid" && rm -f "$1"
}

# Queue and bdi settings of a loop device outlive it: set all that matter.
_slowdisk_queue() {
	local sys=/sys/block/${1##*/}
	echo none >"$sys/queue/scheduler"
	echo 0 >"$sys/queue/rotational"
	echo 1280 >"$sys/queue/max_sectors_kb"
	echo 128 >"$sys/queue/read_ahead_kb"
	echo 2000 >"$sys/queue/wbt_lat_usec"
	echo 0 >"$sys/bdi/strict_limit"
	echo 0 >"$sys/bdi/min_ratio"
	echo 100 >"$sys/bdi/max_ratio"
} 2>/dev/null

_slowdisk_loop() {
	local dir=$1 dev fd
	dev=$(losetup -f --show --direct-io=on "$dir/fuse/disk") || return 1
	exec {fd}<"$dev" || return 1
	setsid sleep infinity <&"$fd" {fd}<&- >/dev/null 2>&1 &
	echo $! >"$dir/holder.pid"
	disown
	losetup -d "$dev" # it is open: this only asks for release at the last close
	exec {fd}<&-
	echo "$dev" >"$dir/dev"
	_slowdisk_queue "$dev"
}

# nbdfuse lives in a mount namespace of its own, without any filesystem on a
# disk. Otherwise, when everything is killed at once, it may be the last one there: as it exits it would
# have to unmount that filesystem, and wait for writes that only it could serve, for ever. Its own
# mount is seen outside, because DIR/fuse alone is shared.
_slowdisk_nbdfuse() {
	local dir=$1
	mkdir "$dir/fuse"
	mount -t tmpfs -o mode=755 slowdisk "$dir/fuse" && mount --make-shared "$dir/fuse" || return 1
	: >"$dir/fuse/disk"
	# shellcheck disable=SC2016 # for the inner shell
	setsid unshare -m --propagation unchanged bash -c '
		findmnt -rn -o TARGET,FSTYPE | while read -r target type; do
			target=$(printf %b "$target")
			[ "$target" = "$1/fuse" ] || mount --make-private "$target"
			[[ $1/ == "${target%/}/"* ]] && continue
			case $type in ext4 | xfs | btrfs | fuse*) umount -l "$target" ;; esac
		done 2>/dev/null
		exec nbdfuse "$1/fuse/disk" --unix "$1/sock"' - "$dir" \
		</dev/null >"$dir/nbdfuse.log" 2>&1 &
	echo $! >"$dir/nbdfuse.pid"
	disown
	_slowdisk_wait 10 _slowdisk_there "$dir/nbdfuse.pid" mountpoint -q "$dir/fuse/disk" || return 1
	mountpoint -q "$dir/fuse/disk"
}

_slowdisk_start() {
	local dir=$1
	shift
	[ -r "$SLOWDISK_PLUGIN" ] || {
		echo "$SLOWDISK_PLUGIN is not built" >"$dir/nbdkit.log"
		return 1
	}
	: >"$dir/ctl"
	setsid nbdkit -f -t 16 -U "$dir/sock" "$(realpath "$SLOWDISK_PLUGIN")" ctl="$dir/ctl" \
		"$@" </dev/null >"$dir/nbdkit.log" 2>&1 &
	echo $! >"$dir/nbdkit.pid"
	disown
	_slowdisk_wait 10 _slowdisk_there "$dir/nbdkit.pid" test -S "$dir/sock" || return 1
	[ -S "$dir/sock" ] || return 1
	_slowdisk_nbdfuse "$dir" || return 1
	_slowdisk_loop "$dir"
}

slowdisk_up() {
	local name=$1 size=$2 rate=$3 dir
	shift 3
	[ -n "$SLOWDISK_DIR" ] || SLOWDISK_DIR=$(mktemp -d -t slowdisk.XXXXXX) || return 1
	dir=$SLOWDISK_DIR/$name
	mkdir -p "$SLOWDISK_DIR" && mkdir "$dir" || return 1
	if ! _slowdisk_start "$dir" size="$size" rate="$rate" "$@"; then
		echo "slowdisk: cannot make $name: $(cat "$dir"/*.log | tail -n 1)" >&2
		slowdisk_down "$name"
		return 1
	fi
	DEV[$name]=$(<"$dir/dev")
}

slowdisk_set() {
	local name=$1 pair
	shift
	for pair in "$@"; do
		case $pair in
		rate=* | near=* | seekmin=* | seekmax=* | rot=*) ;;
		stall=* | weio=* | reio=* | feio=* | enospc=* | vanish=*) ;;
		*)
			echo "slowdisk: cannot set $pair" >&2
			return 1
			;;
		esac
	done
	printf '%s\n' "$@" >>"$SLOWDISK_DIR/$name/ctl"
}

slowdisk_sectors() {
	awk '{ print $7 }' "/sys/block/${DEV[$1]##*/}/stat"
}

slowdisk_down() {
	local name=$1 dir=$SLOWDISK_DIR/$1 dev='' target status=0
	[ -d "$dir" ] || return 0
	# whatever is still dirty goes quickly
	printf '%s\n' rate=0 seekmin=0 seekmax=0 rot=0 stall=0 >>"$dir/ctl"
	[ -s "$dir/dev" ] && dev=$(<"$dir/dev")
	if [ -n "$dev" ]; then
		findmnt -rn -o TARGET -S "$dev" | while read -r target; do
			timeout 20 umount "$target" 2>/dev/null || umount -l "$target"
		done
		_slowdisk_kill "$dir/holder.pid"
		_slowdisk_wait 5 _slowdisk_detached "$dev" || {
			echo "slowdisk: $dev ($name) is still in use" >&2
			status=1
		}
	fi
	for target in "$dir/fuse/disk" "$dir/fuse"; do
		! mountpoint -q "$target" || umount "$target" 2>/dev/null || umount -l "$target"
	done
	_slowdisk_kill "$dir/nbdfuse.pid"
	_slowdisk_kill "$dir/nbdkit.pid"
	unset "DEV[$name]"
	rm -rf "$dir" || status=1
	return "$status"
}

slowdisk_down_all() {
	local dir status=0
	[ -n "$SLOWDISK_DIR" ] || return 0
	for dir in "$SLOWDISK_DIR"/*/; do
		[ -d "$dir" ] || continue
		slowdisk_down "$(basename "$dir")" || status=1
	done
	rmdir "$SLOWDISK_DIR" 2>/dev/null
	SLOWDISK_DIR=
	return "$status"
}
