#!/bin/bash
# Processor time and context switches of one tree of 3,000 files that is copied into a sandbox, of all processes,
# beside tar through ssh. The difference between many rounds and a few is divided by the rounds between them, so the
# start of a sandbox is not counted. Files are in memory: ext4 without a journal searches long for the number of a new file.
#
#   archives.sh [CARRIER ...]      default: plain local ssh
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
[ $# -gt 0 ] || set -- plain local ssh
work=$(mktemp -d /dev/shm/agentsh-archives.XXXXXX)
trap 'rm -rf --one-file-system "$work"' EXIT
cd "$root/controller/sandbox/sandboxtest"
"${GO:-go}" test -c -o "$work/bench.test" .
# spent prints both of some rounds with a carrier.
spent() {
	TMPDIR=$work perf stat -x, -e task-clock,context-switches -o "$work/stat" \
		"$work/bench.test" -test.run '^$' -test.bench "Carriers/$1\$/archive in\$" -test.benchtime "$2x" >/dev/null
	awk -F, '/task-clock/ {time = $1} /context-switches/ {print time, $1}' "$work/stat"
}
printf '%-8s %12s %10s\n' carrier cpu-ms/op switches
for carrier; do
	few=$(spent "$carrier" 2) many=$(spent "$carrier" 12)
	echo "$carrier $few $many" | awk '{printf "%-8s %12.0f %10.0f\n", $1, ($4 - $2) / 10, ($5 - $3) / 10}'
done
