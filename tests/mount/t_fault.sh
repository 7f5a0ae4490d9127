#!/bin/bash
# Calls that fail inside the daemon: the ones that did harm once, and a random sample of all. By hand,
# for all of them: tests/fault/sweep.
# timeout: 240
# shellcheck source=../lib/mount_test.sh
. "$PACEFS_REPO/tests/lib/mount_test.sh"

SEED=${PACEFS_FAULT_SEED:-1}
# Per kind of run. PACEFS_FAULT_S=600 for a night.
SECONDS_EACH=${PACEFS_FAULT_S:-6}

sweep() {
	PACEFS=$PACEFS "$PACEFS_REPO/tests/fault/sweep" "$@" || failures=$((failures + 1))
}

sweep --cases "$PACEFS_REPO/tests/fault/cases"
sweep --engine uring --seed "$SEED" --seconds "$SECONDS_EACH"
sweep --engine sync --seed "$SEED" --seconds "$SECONDS_EACH"
sweep --engine uring --source tmpfs --seed "$SEED" --seconds "$SECONDS_EACH"
sweep --source raw --seed "$SEED" --seconds $((SECONDS_EACH / 2))
sweep --at start --seed "$SEED" --seconds "$SECONDS_EACH"
sweep --at start --daemon --seed "$SEED" --seconds $((SECONDS_EACH / 2))
