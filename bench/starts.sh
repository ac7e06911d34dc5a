#!/bin/bash
# The start of one command, /bin/true: native, bubblewrap, agentsh exec with a
# session of its own and in a running one; and what the processes of one session
# and of ten keep in memory when they are quiet.
#
#   starts.sh N
set -eu
here=$(cd "$(dirname "$0")" && pwd)
agentsh=$here/../bin/agentsh policy=$here/../packaging/policies/default.yaml
dir=$(mktemp -d /var/tmp/agentsh-starts.XXXXXX)
name=bench$$
trap '"$agentsh" session destroy "$name" >/dev/null 2>&1 || :; rm -rf "$dir"' EXIT
mkdir "$dir/work"

native() { env /bin/true; }
bubblewrap() { bwrap --dev-bind / / --unshare-all --proc /proc --die-with-parent -- /bin/true; }
supervised() { "$agentsh" exec -p "$policy" -w "$dir/work" --cwd "$dir/work" --audit "$dir/audit" -- /bin/true; }
running() { "$agentsh" exec --session "$name" -- /bin/true; }
"$agentsh" session create --name "$name" -p "$policy" -w "$dir/work" --audit "$dir/audit-running" >/dev/null

median() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
for _ in $(seq "$1"); do
	for who in native bubblewrap supervised running; do
		began=${EPOCHREALTIME/./}
		$who
		echo $((${EPOCHREALTIME/./} - began)) >>"$dir/$who"
	done
done
for who in native bubblewrap supervised running; do
	printf 'start of /bin/true, %-11s %8.2f ms (median of %d)\n' "$who" "$(median <"$dir/$who" | awk '{ print $1 / 1e3 }')" "$1"
done
"$agentsh" session destroy "$name" >/dev/null # it would share memory with those below

# memory holds a fifo open for writing: the commands of all sessions wait for its end.
memory() {
	local n=$1 pids=() i pid total=0
	mkfifo "$dir/hold"
	exec 9<>"$dir/hold"
	for i in $(seq "$n"); do
		mkdir -p "$dir/m$i"
		"$agentsh" exec -p "$policy" -w "$dir/m$i" --cwd "$dir/m$i" --audit "$dir/audit$i" -- sh -c 'echo up; read x' <"$dir/hold" >"$dir/out$i" 2>"$dir/err$i" 9>&- &
		pids+=($!)
	done
	for i in $(seq "$n"); do
		until [ -s "$dir/out$i" ]; do
			kill -0 "${pids[i - 1]}" 2>/dev/null || { cat "$dir/err$i" >&2; return 1; }
			read -rt 0.02 _ <>"$dir/never" || :
		done
	done
	read -rt 6 _ <>"$dir/never" || : # what a burst used is given back after two to four seconds
	# shellcheck disable=SC2046 # numbers
	for pid in "${pids[@]}" $(for i in "${pids[@]}"; do pgrep -P "$i"; done); do
		[ "$(readlink "/proc/$pid/exe")" = "$(readlink -f "$agentsh")" ] || continue
		total=$((total + $(awk '/^Pss:/ { print $2 }' "/proc/$pid/smaps_rollup")))
	done
	printf 'memory of supervisor, file server and init, %2d sessions: %.1f MiB (proportional set size)\n' "$n" "$(awk "BEGIN { print $total / 1024 }")"
	exec 9>&-
	wait
	rm -f "$dir/hold"
}
mkfifo "$dir/never"
memory 1
memory 10
