# mount_test.sh - what a mount test (tests/mount/t_*.sh) sources first. It runs in a room
# (room.sh): TEST_DIR is empty and private, and so is the mount namespace.
#
# Checks, each printing one line:
#   check NAME command...          ok when the command succeeds
#   check_fails NAME command...    ok when it does not
#   check_eq NAME GOT WANT         equal as text
#   check_le NAME GOT MOST         numbers; check_ge NAME GOT LEAST; check_between NAME GOT LOW HIGH
#   pass NAME | fail NAME WHY | skip NAME WHY
#   skip_all WHY                   leaves the test
#   have COMMAND                   true if it is installed
#   says FILE PATTERN              a line of it matches; else shows it
# A source:
#   source_up NAME FS SIZE RATE [plugin args]   slow disk, mkfs (ext4, xfs, btrfs), mounted at
#                                  $TEST_DIR/NAME; DEV[NAME] is its device (see slowdisk.sh)
#   source_down NAME
#   source_mkfs NAME FS            the same on a disk that is already up
# The daemon:
#   pacefs_start SOURCE MNT [OPTS] [FLAGS...]   mounts ("$PACEFS" FLAGS... SOURCE MNT -o OPTS) and
#                                  waits until the mount answers; PACEFS_PID[MNT] is the daemon's
#   pacefs_stop [MNT]              umount, wait for the daemon; fails unless both succeed and
#                                  the daemon exits 0. Its exit status: PACEFS_STATUS
#   pacefs_wait [MNT]              only waits for the daemon's exit (sets PACEFS_STATUS)
#   pacefs_log [MNT]               what launcher and daemon wrote to stderr
#   pstat KEY [MNT]                one value of the mount's statistics
# MNT defaults to the mount started last.
# Also: now_ms, elapsed_ms START; value KEY picks one value of a "key=value ..." line of
# "$BENCH/load" or "$BENCH/probe" on stdin.
# Python programs of a test find the modules of this folder (ask.py).
#
# The end of the script stops what still runs; a daemon that then does not exit 0 is a failure.
# shellcheck shell=bash
set -u

PACEFS=${PACEFS:-$PACEFS_BUILD/pacefs}
# shellcheck disable=SC2034 # for the tests
BENCH=$PACEFS_BUILD/bench
SLOWDISK_DIR=$TEST_DIR/.disks
export PYTHONPATH=$PACEFS_REPO/tests/lib PYTHONDONTWRITEBYTECODE=1
# shellcheck source=../../bench/rig/slowdisk.sh
. "$PACEFS_REPO/bench/rig/slowdisk.sh"

PACEFS_STOP_TIMEOUT_S=${PACEFS_STOP_TIMEOUT_S:-60}
declare -gA PACEFS_PID PACEFS_REAPER
PACEFS_MNT=
PACEFS_STATUS=
failures=0

# ---- checks ----

pass() {
	echo "ok $1"
}

fail() {
	failures=$((failures + 1))
	echo "not ok $1: $2"
	return 1
}

skip() {
	echo "skip $1: $2"
}

skip_all() {
	skip "$(basename "$0" .sh)" "$1"
	exit 0
}

check() {
	local name=$1 status
	shift
	"$@"
	status=$?
	if [ "$status" -eq 0 ]; then
		pass "$name"
	else
		fail "$name" "$1 returned $status"
	fi
}

check_fails() {
	local name=$1
	shift
	if "$@"; then
		fail "$name" "$1 should have failed"
	else
		pass "$name"
	fi
}

check_eq() {
	if [ "$2" = "$3" ]; then
		pass "$1"
	else
		fail "$1" "got '$2', want '$3'"
	fi
}

check_between() {
	if awk -v x="$2" -v low="$3" -v high="$4" 'BEGIN {
		exit !(x ~ /^[-+]?[0-9.]+(e[-+]?[0-9]+)?$/ && x + 0 >= low && x + 0 <= high) }'; then
		pass "$1 ($2)"
	else
		fail "$1" "got '$2', want $3..$4"
	fi
}

check_le() {
	check_between "$1" "$2" -1e300 "$3"
}

check_ge() {
	check_between "$1" "$2" "$3" 1e300
}

says() {
	grep -qE -- "$2" "$1" && return 0
	echo "no '$2' in:"
	cat "$1"
	return 1
}

have() {
	command -v "$1" >/dev/null
}

now_ms() {
	awk '{ printf "%.0f", $1 * 1000 }' /proc/uptime
}

elapsed_ms() {
	echo $(($(now_ms) - $1))
}

value() {
	tr ' ' '\n' | sed -n "s/^$1=//p"
}

# ---- sources ----

source_mkfs() {
	local name=$1 fs=$2 dev=${DEV[$1]}
	case $fs in
	ext4) mkfs.ext4 -qF -E nodiscard,lazy_itable_init=0,lazy_journal_init=0 "$dev" ;;
	xfs | btrfs) "mkfs.$fs" -qf "$dev" ;;
	*) false ;;
	esac && mkdir -p "$TEST_DIR/$name" && mount -t "$fs" "$dev" "$TEST_DIR/$name"
}

# mkfs at full speed, then the rate
source_up() {
	local name=$1 fs=$2 size=$3 rate=$4
	shift 4
	slowdisk_up "$name" "$size" 0 "$@" && source_mkfs "$name" "$fs" &&
		sync -f "$TEST_DIR/$name" && slowdisk_set "$name" rate="$rate"
}

source_down() {
	slowdisk_down "$1"
}

# ---- the daemon ----

_pacefs_dir() {
	echo "$TEST_DIR/.pacefs/$(tr / _ <<<"$1")"
}

_pacefs_answers() {
	local type magic=0x65735546 # FUSE_SUPER_MAGIC: coreutils have had two names for it
	type=$(findmnt -rn -o FSTYPE --mountpoint "$1" | tail -n 1)
	# the second look is at what answers: a dead mount may have gone since the first
	[[ $type == fuse* ]] && [ "0x$(timeout 5 stat -f -c %t "$1" 2>/dev/null)" = $magic ]
}

# the launcher failed, or the mount answers (a daemon in the foreground never ends)
_pacefs_settled() {
	[ -s "$2/launched" ] && [ "$(<"$2/launched")" -ne 0 ] || _pacefs_answers "$1" ||
		! kill -0 "${PACEFS_REAPER[$1]}" 2>/dev/null
}

# The launcher may take a moment longer than the mount: it is not the daemon.
_pacefs_alone() {
	[ "$(pgrep -P "${PACEFS_REAPER[$1]}" | wc -l)" -le 1 ]
}

pacefs_start() {
	local source=$1 mnt=$2 opts=${3:-} dir
	shift $(($# > 3 ? 3 : $#))
	dir=$(_pacefs_dir "$mnt")
	rm -rf "$dir"
	mkdir -p "$dir"
	mkdir -p "$mnt" 2>/dev/null # a dead mount is there, but cannot be seen
	[ "$mnt" = "$source" ] && [ -n "${PACEFS_PID[$mnt]:-}" ] && return 1
	setsid python3 "$PACEFS_REPO/tests/lib/reap.py" "$dir/launched" "$PACEFS" "$@" \
		"$source" "$mnt" ${opts:+-o "$opts"} </dev/null >"$dir/log" 2>&1 &
	PACEFS_REAPER[$mnt]=$!
	if ! _slowdisk_wait 15 _pacefs_settled "$mnt" "$dir" || ! _pacefs_answers "$mnt"; then
		echo "pacefs $source $mnt did not mount:"
		cat "$dir/log"
		_pacefs_kill "$mnt"
		return 1
	fi
	_slowdisk_wait 15 _pacefs_alone "$mnt"
	PACEFS_PID[$mnt]=$(pgrep -P "${PACEFS_REAPER[$mnt]}" | head -n 1)
	PACEFS_MNT=$mnt
}

pacefs_log() {
	cat "$(_pacefs_dir "${1:-$PACEFS_MNT}")/log"
}

# A sanitizer or an assertion has spoken, whatever the exit status says.
_pacefs_log_clean() {
	! grep -E 'Sanitizer|runtime error:|[Aa]ssertion' "$(_pacefs_dir "$1")/log"
}

_pacefs_forget() {
	unset "PACEFS_PID[$1]" "PACEFS_REAPER[$1]"
}

pacefs_wait() {
	local mnt=${1:-$PACEFS_MNT} reaper=${PACEFS_REAPER[${1:-$PACEFS_MNT}]}
	PACEFS_STATUS=
	_slowdisk_wait "$PACEFS_STOP_TIMEOUT_S" _slowdisk_gone "$reaper" || {
		echo "the daemon of $mnt is still there after $PACEFS_STOP_TIMEOUT_S s"
		return 1
	}
	wait "$reaper"
	PACEFS_STATUS=$?
	_pacefs_forget "$mnt"
	_pacefs_log_clean "$mnt"
}

pacefs_stop() {
	local mnt=${1:-$PACEFS_MNT}
	if ! timeout "$PACEFS_STOP_TIMEOUT_S" umount "$mnt"; then
		echo "umount $mnt failed"
		return 1
	fi
	pacefs_wait "$mnt" || return 1
	[ "$PACEFS_STATUS" -eq 0 ] && return 0
	echo "the daemon of $mnt exited $PACEFS_STATUS:"
	pacefs_log "$mnt"
	return 1
}

_pacefs_kill() {
	local mnt=$1 pid
	[ -n "${PACEFS_REAPER[$mnt]:-}" ] || return 0
	for pid in $(pgrep -P "${PACEFS_REAPER[$mnt]}") "${PACEFS_REAPER[$mnt]}"; do
		kill -9 "$pid" 2>/dev/null
	done
	wait "${PACEFS_REAPER[$mnt]}" 2>/dev/null
	! [[ $(findmnt -rn -o FSTYPE --mountpoint "$mnt" | tail -n 1) == fuse* ]] ||
		umount -l "$mnt"
	_pacefs_forget "$mnt"
}

pstat() {
	timeout 10 getfattr --only-values -n user.pacefs.stats "${2:-$PACEFS_MNT}" 2>/dev/null |
		awk -F': *' -v key="$1" '$1 == key { split($2, word, " "); print word[1] }'
}

# ---- the end ----

_finish() {
	local status=$? mnt
	trap '' INT TERM
	cd /
	for mnt in "${!PACEFS_REAPER[@]}"; do
		if [ "$status" -ne 0 ] || ! pacefs_stop "$mnt"; then
			[ "$status" -ne 0 ] || fail "stop $mnt" "see above"
			_pacefs_kill "$mnt"
		fi
	done
	slowdisk_down_all || fail "disks" "see above"
	[ "$status" -eq 0 ] && [ "$failures" -gt 0 ] && status=1
	exit "$status"
}

trap _finish EXIT
trap 'echo "stopped by a signal"; exit 143' INT TERM
mkdir -p "$SLOWDISK_DIR"
cd "$TEST_DIR" || exit 1
