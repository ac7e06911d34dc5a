#!/bin/bash
# Run the same checks in every place and compare what comes out with what is recorded.
#
#   run.sh PLACE ...      UPDATE=1: record what came out instead
#
# Places: musl no-fuse no-userns docker-root docker-user docker-page podman podman-unmasked
#         docker-profile docker-root-profile podman-profile podman-root-profile docker-examples
#         docker-IMAGE podman-IMAGE, with debian, ubuntu, node, python, golang or alpine as IMAGE
#         gvisor gvisor-user gvisor-files gvisor-files-user gvisor-docker gvisor-page gvisor-demo gvisor-docker-demo
#         kernel-5.10 kernel-6.1 kernel-6.12 kernel-newest arm64-6.1
#
# CACHE     kernels, root file systems and images, made when they are missing (/var/tmp/agentsh-places)
# EVASIONS  the corpus of bypasses; its probes run in the places that have what they need
# RACE_N    tries of its races (200, in virtual machines and gVisor 20)
# RUNSC     gVisor's program, for the places in it
#
# A place fails when a check differs from golden.tsv, when it prints nothing, and when its
# probes did not run or one of them was not held. The exit status is 0 without a failure.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
export CACHE=${CACHE:-/var/tmp/agentsh-places}
corpus=${EVASIONS:-$root/../shared/evasions}
[ "$(id -u)" = 0 ] || { echo "places: needs root to make them" >&2; exit 2; }
[ $# -gt 0 ] || { sed -n '2,/^set/p' "$0" | grep '^#' >&2; exit 2; }
mkdir -p "$CACHE"
work=$(mktemp -d /var/tmp/places-run.XXXXXX)
chmod 755 "$work"
trap '[ -n "${KEEP:-}" ] || rm -rf --one-file-system "$work"' EXIT

# shellcheck source=test/places/common.sh
. "$here/common.sh"
# shellcheck source=test/places/host.sh
. "$here/host.sh"
# shellcheck source=test/places/containers.sh
. "$here/containers.sh"
# shellcheck source=test/places/images.sh
. "$here/images.sh"
# shellcheck source=test/places/vm.sh
. "$here/vm.sh"

failed=0
# one runs a place and prints its part of the table.
one() {
	local place=$1 out=$work/$1.out log=$work/$1.log result=ok status
	rm -rf "$work/places" "$work/diff"
	set +e # a shell of its own stops at its first failure; in a condition it would not
	(
		set -e
		daemon=
		trap stop_daemon EXIT
		"place_${place//[-.]/_}" "$place"
	) >"$out" 2>"$log"
	status=$?
	set -e
	[ "$status" = 0 ] || result="FAIL: exit $status, $(tail -1 "$log")"
	grep -a $'\t' "$out" | tr -d '\r' | sed "s/^/$place\t/" >"$work/$place.tsv" || true
	[ -s "$work/$place.tsv" ] || result="FAIL: nothing ran"
	if [ -n "${UPDATE:-}" ] && [ "$result" = ok ]; then
		{ grep -v "^$place	" "$here/golden.tsv" 2>/dev/null || true; grep -v "	probes: " "$work/$place.tsv"; } >"$work/golden"
		cp "$work/golden" "$here/golden.tsv"
	fi
	if ! diff <(grep "^$place	" "$here/golden.tsv") <(grep -v "	probes: " "$work/$place.tsv") >"$work/diff"; then
		[ "$result" != ok ] || result="FAIL: differs from golden.tsv"
	fi
	local probes
	probes=$(sed -n 's/.*	probes: \(.*\)	\(.*\)/\1 \2;/p' "$work/$place.tsv" | tr '\n' ' ')
	if wants_probes "$place" && ! grep -q '	probes: run	[1-9]' "$work/$place.tsv"; then
		result="FAIL: no probe ran"
	fi
	grep -q '	probes: failed	[1-9]' "$work/$place.tsv" && result="FAIL: probes"
	printf '%-16s %-3s checks  fallbacks %-40s %s %s\n' "$place" "$(grep -vc '	enforced: \|	probes: ' "$work/$place.tsv")" \
		"$(sed -n 's/.*	fallbacks	//p' "$work/$place.tsv")" "$probes" "$result"
	case $result in
	FAIL*)
		failed=$((failed + 1))
		cat "$work/diff" 2>/dev/null || true
		tail -40 "$log"
		;;
	esac
}

# wants_probes tells where the probes must run: where they have what they need.
wants_probes() {
	[ -x "$corpus/run-all.sh" ] || return 1
	# The corpus needs root outside, python3 and bash; its programs are built for this machine.
	case $1 in docker-root | podman | podman-unmasked) ;; docker-* | podman-*) return 1 ;; esac
	case $1 in musl | arm64-* | docker-user | no-userns | gvisor-user | gvisor-files* | *-page | *-demo) return 1 ;; esac
}

[ -x "$corpus/run-all.sh" ] || echo "places: no corpus in $corpus: no probes run" >&2
for place; do
	one "$place"
done
[ "$failed" = 0 ]
