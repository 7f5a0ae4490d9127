# packages.sh - installs Debian packages that are missing. Source it.
# shellcheck shell=bash

# ensure_packages PACKAGE...: 0 when all are there afterwards. Elsewhere than on Debian the
# packages have other names; there it does nothing, and what is missing shows when it is used.
ensure_packages() {
	local package missing=() log status
	command -v dpkg-query >/dev/null || return 0
	for package in "$@"; do
		dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null |
			grep -qx installed || missing+=("$package")
	done
	[ "${#missing[@]}" -gt 0 ] || return 0
	echo "installing: ${missing[*]}"
	log=$(mktemp) || return 1
	apt-get update >"$log" 2>&1 && DEBIAN_FRONTEND=noninteractive apt-get install -y \
		--no-install-recommends "${missing[@]}" >>"$log" 2>&1 </dev/null
	status=$?
	[ "$status" -eq 0 ] || tail -n 20 "$log"
	rm -f "$log"
	return "$status"
}
