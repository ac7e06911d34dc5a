#!/bin/bash
# Run the demo and the session of the README on kernels of Debian, in virtual machines
# without hardware support.
#
#   run.sh KERNEL ...      5.10, 6.1, 6.12 or newest
#
# CACHE     kernels and the root file system, made when they are missing (/var/tmp/agentsh-places)
# DEGRADED  what the configuration of the machine has in degraded; default: landlock on 5.10
#
# Each machine runs `make demo`, the session of the README as root and as a user, the first
# harness that `agentctl init` writes, the tests of AF_VSOCK sockets, and those of a backend over one. Programs come from bin.
# A machine without a configuration has none: nothing is allowed to be missing.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
export CACHE=${CACHE:-/var/tmp/agentsh-places}
[ "$(id -u)" = 0 ] || { echo "kernels: needs root to make machines" >&2; exit 2; }
[ $# -gt 0 ] || { sed -n '2,/^set/p' "$0" | grep '^#' >&2; exit 2; }
mkdir -p "$CACHE"
work=$(mktemp -d /var/tmp/kernels-run.XXXXXX)
trap '[ -n "${KEEP:-}" ] || rm -rf --one-file-system "$work"' EXIT

# shellcheck source=test/places/common.sh
. "$root/test/places/common.sh"
# shellcheck source=test/places/vm.sh
. "$root/test/places/vm.sh"

suite() {
	case $1 in
	5.10) echo bullseye-security ;;
	6.1) echo bookworm-security ;;
	6.12) echo trixie ;;
	newest) echo sid ;;
	*) echo "kernels: no kernel $1: 5.10, 6.1, 6.12 or newest" >&2; return 2 ;;
	esac
}

# readme_session writes the session of the README as a script, and what it must print.
readme_session() {
	awk '/^    \$ bin\/agentsh exec/ {on = 1} on && !/^    / {exit} on {print substr($0, 5)}' "$root/README.md" >"$work/session"
	sed -n 's/^[$>] //p' "$work/session" >"$work/places/session.sh"
	grep -v '^[$>] ' "$work/session" >"$work/places/session.want"
	if [ ! -s "$work/places/session.sh" ] || [ ! -s "$work/places/session.want" ]; then
		echo "kernels: README.md has no session" >&2
		return 1
	fi
}

machine() {
	local kernel=$1 files dir
	rm -rf "$work/places"
	mkdir -p "$work/places"
	files=$(fetch_kernel "$(suite "$kernel")" amd64 linux-image-cloud-amd64)
	dir=$(demo_root)
	readme_session
	cp "$here/job.sh" "$work/places/"
	git -C "$root" archive --format=tar HEAD | gzip -1 >"$work/places/tree.tar.gz"
	cp "$root/bin/agentsh" "$root/bin/agentctl" "$work/places/"
	local degraded=${DEGRADED:-}
	[ "$kernel" != 5.10 ] || degraded=${DEGRADED:-landlock}
	[ -z "$degraded" ] || printf 'version: 1\ndegraded: [%s]\n' "$degraded" >"$work/places/config.yaml"
	(cd "$root" && CGO_ENABLED=0 "${GO:-go}" test -c -o "$work/places/socket.test" ./internal/socket &&
		CGO_ENABLED=0 "${GO:-go}" test -c -o "$work/places/sandbox.test" ./controller/sandbox/sandboxtest)
	local modules=(vsock_loopback)
	make_initramfs "$files" "$(command -v busybox)"
	make_disk "$dir" 2500
	memory=2048 boot "$files" "${SECONDS_OF_MACHINE:-3000}" "${emulator[@]}"
}

failed=0
for kernel; do
	result=ok
	set +e
	(
		set -e
		machine "$kernel"
	) >"$work/out" 2>"$work/log"
	status=$?
	set -e
	[ "$status" = 0 ] || result="FAIL: $(tail -1 "$work/log")"
	for part in demo session-root session-user first-harness vsock vsock-sandbox; do
		grep -aq "^$part	ok" "$work/out" || result="FAIL: $part"
	done
	printf '%-8s %-28s %s\n' "$kernel" "$(sed -n 's/^=== begin //p' "$work/out" | tr -d '\r')" "$result"
	if [ "$result" != ok ]; then
		failed=$((failed + 1))
		tail -60 "$work/out"
		tail -40 "$work/log"
	fi
done
[ "$failed" = 0 ]
