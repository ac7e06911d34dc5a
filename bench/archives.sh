#!/bin/bash
# Processor time and context switches of one tree of 3,000 files that is copied into a sandbox and out of it, of all
# processes, beside tar through ssh. The difference between many rounds and a few is divided by the rounds between them, so the
# start of a sandbox is not counted. Files are in memory: ext4 without a journal searches long for the number of a new file.
#
#   archives.sh [CARRIER ...]      default: plain local ssh
#
# x is the processor time of the first carrier by that of this one: 2 is half of its time.
# ROUNDS  medians of so many differences (3)
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
[ $# -gt 0 ] || set -- plain local ssh
work=$(mktemp -d /dev/shm/agentsh-archives.XXXXXX)
trap 'rm -rf --one-file-system "$work"' EXIT
cd "$root/controller/sandbox/sandboxtest"
"${GO:-go}" test -c -o "$work/bench.test" .
# spent prints both of some rounds of a direction with a carrier.
spent() {
	TMPDIR=$work perf stat -x, -e task-clock,context-switches -o "$work/stat" \
		"$work/bench.test" -test.run '^$' -test.bench "Carriers/^$1\$/archive $2\$" -test.benchtime "$3x" >/dev/null
	awk -F, '/task-clock/ {time = $1} /context-switches/ {print time, $1}' "$work/stat"
}
spent plain in 1 >/dev/null # it builds agentsh, which is not counted
printf '%-10s %-8s %12s %10s %6s\n' direction carrier cpu-ms/op switches x
for direction in in out; do
	first=
	for carrier; do
		for ((i = 0; i < ${ROUNDS:-3}; i++)); do
			few=$(spent "$carrier" "$direction" 2) many=$(spent "$carrier" "$direction" 10)
			echo "$few $many" | awk '{print ($3 - $1) / 8, ($4 - $2) / 8}'
		done | sort -n >"$work/rounds"
		read -r cpu switches < <(sed -n "$(((${ROUNDS:-3} + 1) / 2))p" "$work/rounds")
		first=${first:-$cpu}
		awk -v d="$direction" -v c="$carrier" -v cpu="$cpu" -v s="$switches" -v first="$first" 'BEGIN {
			printf "%-10s %-8s %12.0f %10.0f %6.2f\n", d, c, cpu, s, first / cpu }'
	done
done
