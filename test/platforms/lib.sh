# shellcheck shell=bash disable=SC2034
# What the scripts of vendors share. Each sets remove, a function that deletes what it made.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
name=agentsh-$(date +%H%M%S)-$$
dir=$(mktemp -d /var/tmp/agentsh-platform.XXXXXX)

finish() {
	local status=$?
	trap '' INT TERM HUP # what is made is deleted, whoever is impatient
	remove || { echo "delete $name by hand: it may still be there" >&2; status=1; }
	rm -rf "$dir"
	exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# needs ends the script unless there are the programs and the variables (NAME=) that it names.
needs() {
	local what
	for what in "$@"; do
		case $what in
		*=) what=${what%=}; [ -n "${!what:-}" ] || { echo "set $what" >&2; exit 2; } ;;
		*) command -v "$what" >/dev/null || { echo "$what is not installed: doc/platforms says where it comes from" >&2; exit 2; } ;;
		esac
	done
}

# place_key makes the key of a place that listens.
place_key() { (umask 077 && head -c 32 /dev/urandom | base64 >"$dir/place.key"); }
