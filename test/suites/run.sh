#!/bin/bash
# Run other people's test suites natively and in sessions, and compare.
#
#   run.sh SUITE ...      go cpython git bash jobs stress_ng postgres redis nginx chromium
#
# POLICIES  of the sessions (default: default agent-sandbox; for git permissive in place of default, for bash permissive)
# USERS     root user (default: both): whose sessions; a user's is that of uid 1000
# GROUPS_OF_SUITE  run these alone: packages of Go, files of CPython, scripts of git, stressors
# ENGINE    trace: sessions stop calls by the tracer and not by the listener
# NATIVE    again: run natively even where the cache has a result; default: when it has none of
#           this machine's programs
# CACHE     what is tested and the results (/var/tmp/agentsh-suites, 3 GB)
# SECONDS_TIMES  a factor for every limit of time: of a group and of its steps (1)
#
# A test that ends otherwise in a session than natively is a difference. differences.tsv lists
# each with its reason. The exit status is 0 when the differences are those of the table.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
cache=${CACHE:-/var/tmp/agentsh-suites}
work=$cache/work in=$cache/work/in
[ "$(id -u)" = 0 ] || { echo "suites: needs root, to become the users of sessions" >&2; exit 2; }
[ -x "$root/bin/agentsh" ] || { echo "suites: no $root/bin/agentsh: run 'make build'" >&2; exit 2; }
[ $# -gt 0 ] || { sed -n '2,/^set/p' "$0" | grep '^#' >&2; exit 2; }
mkdir -p "$in" "$cache/results" "$cache/policies" "$work/cache"
if [ -z "${SUITES_LOCKED:-}" ]; then
	status=0
	SUITES_LOCKED=1 flock -n -o -E 75 "$cache/lock" "$0" "$@" || status=$?
	[ "$status" != 75 ] || echo "suites: another run uses $cache: wait for it, or set CACHE" >&2
	exit "$status"
fi
# shellcheck source=test/suites/prepare.sh
. "$here/prepare.sh"
cp "$root/bin/agentsh" "$cache/agentsh"
cp "$root"/packaging/policies/*.yaml "$here"/policies/*.yaml "$cache/policies/"
echo 'version: 1' >"$cache/config.yaml"
if [ "${ENGINE:-}" = trace ]; then echo 'forbid_engine: [listener]' >>"$cache/config.yaml"; fi
cp "$here/inside.sh" "$here/cpython.py" "$here/jobs.py" "$work/"
chmod -R a+rX "$cache/policies" "$cache/config.yaml" "$work/inside.sh" "$work/cpython.py" "$work/jobs.py" "$in"
chmod 755 "$cache" "$work"
(cd "$root" && go build -o "$cache/judge" ./test/suites/judge)

uid_of() { if [ "$1" = root ]; then echo 60700; else echo 1000; fi; }

# session runs a command under a policy, in a session of root's or of a user's, whose
# device of FUSE may be opened as a distribution has it.
session() {
	local user=$1 policy=$2 start=() state=$cache/state-$1
	shift 2
	rm -rf "$state"
	mkdir "$state"
	if [ "$user" = user ]; then
		chown 1000:1000 "$state"
		# shellcheck disable=SC2016 # the inner shell expands
		start=(unshare -m sh -c 'mount -t tmpfs none /mnt && mknod -m 666 /mnt/fuse c 10 229 && mount --bind /mnt/fuse /dev/fuse && umount -l /mnt &&
			exec setpriv --reuid 1000 --regid 1000 --clear-groups "$@"' sh)
	fi
	local variables=()
	while [[ $1 == *=* ]]; do variables+=(-e "$1") && shift; done
	env -i PATH="$PATH" HOME="$state" XDG_STATE_HOME="$state" "${start[@]}" "$cache/agentsh" exec --config "$cache/config.yaml" \
		-p "$cache/policies/$policy.yaml" -w "$work" --audit "$state/audit.jsonl" "${variables[@]}" -- "$@"
}

# one runs a suite in one world and leaves results/SUITE/WORLD.USER.tsv.
one() {
	local suite=$1 world=$2 user=$3 uid began=$SECONDS limit
	local result=$cache/results/$suite/$world.$user.tsv
	uid=$(uid_of "$user")
	limit=$(($(seconds "$suite") * ${SECONDS_TIMES:-1}))
	rm -rf "$work/out" "$work/tmp"
	mkdir -p "$work/out" "$work/tmp" "$work/cache"
	chown "$uid:$uid" "$work" "$work/out" "$work/tmp"
	chown -R "$uid:$uid" "$work/cache"
	local words=(SUITES_DIR="$work" SUITES_SECONDS="$limit" SUITES_TIMES="${SECONDS_TIMES:-1}" GOROOT="$(go env GOROOT)" SUITES_PG="$pg" sh "$work/inside.sh" "$suite" "${groups[@]}")
	local start=(session "$user" "$world")
	[ "$world" != native ] || start=("$here/native.sh" "$uid" "$work")
	"${start[@]}" "${words[@]}" >"$work/out/world.log" 2>&1 </dev/null || echo "exit status $?" >>"$work/out/world.log"
	mkdir -p "$cache/results/$suite"
	"$cache/judge" parse "$suite" "$work/out" "${groups[@]}" >"$result.new"
	mv "$result.new" "$result"
	if grep -q 'missing$' "$result"; then tail -n 5 "$work/out/world.log" >&2; fi
	rm -rf "$cache/logs/$suite/$world.$user"
	mkdir -p "$cache/logs/$suite"
	mv "$work/out" "$cache/logs/$suite/$world.$user"
	printf '%-10s %-14s %-5s %6d results %5d s\n' "$suite" "$world" "$user" "$(wc -l <"$result")" $((SECONDS - began)) >&2
}

failed=0
pg=$(find /usr/lib/postgresql -maxdepth 2 -name bin 2>/dev/null | sort -V | tail -n 1)
for suite; do
	declare -F "groups_$suite" >/dev/null || { echo "suites: no suite $suite: go cpython git bash jobs stress_ng postgres redis nginx chromium" >&2; exit 2; }
	"prepare_$suite"
	chmod -R a+rX "$in"
	read -ra groups <<<"${GROUPS_OF_SUITE:-$("groups_$suite" | tr '\n' ' ')}"
	policies=${POLICIES:-default agent-sandbox}
	[ "$suite" != git ] || policies=${policies/default/permissive}
	[ "$suite" != bash ] || policies=permissive # the others give bash a script that disables builtins
	for user in ${USERS:-root user}; do
		# What ran natively is not run again: the same kernel, groups and way to run them.
		key="$(uname -r) ${groups[*]} $(sed -n "/^${suite}_()/,/^}/p" "$here/inside.sh" | cat - "$here/native.sh" | sha256sum)"
		if [ "${NATIVE:-}" = again ] || [ "$(cat "$cache/results/$suite/native.$user.key" 2>/dev/null)" != "$key" ]; then
			one "$suite" native "$user"
			echo "$key" >"$cache/results/$suite/native.$user.key"
		fi
		for policy in $policies; do
			one "$suite" "$policy" "$user"
			"$cache/judge" compare "$here/differences.tsv" "$suite" "$policy" "$user" \
				"$cache/results/$suite/native.$user.tsv" "$cache/results/$suite/$policy.$user.tsv" || failed=$((failed + 1))
		done
	done
done
[ "$failed" = 0 ] || echo "suites: $failed comparisons differ from differences.tsv" >&2
[ "$failed" = 0 ]
