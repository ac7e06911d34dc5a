#!/bin/bash
# What sandboxes cost by each carrier, beside ssh and tar without agentctl, in one table. Every figure is a median.
#
#   remote.sh [ROUNDS [CARRIER ...]]      default: 5 plain local unix tcp ws exec ssh
#
# sandbox   ms until a new sandbox can be used, and is removed; of plain: ssh and a command that does nothing
# exec      ms of a command that does nothing in a sandbox; of plain: the same as sandbox
# in, out   MB/s of one stream of 64 MiB into a command and out of it
# tree in, tree out   ms of 3,000 files, 20 MB; of plain: tar by ssh
# In parentheses: ms of processor time of the benchmark and of its children that have ended. Files are in memory, as those
# of archives.sh are.
set -euo pipefail
rounds=${1:-5}
[ $# = 0 ] || shift
[ "$(id -u)" = 0 ] || { echo "bench: needs root" >&2; exit 2; }
[ $# -gt 0 ] || set -- plain local unix tcp ws exec ssh
TMPDIR=$(mktemp -d /dev/shm/agentsh-remote.XXXXXX)
export TMPDIR
trap 'rm -rf --one-file-system "$TMPDIR"' EXIT
cd "$(dirname "$0")/../controller/sandbox/sandboxtest"
"${GO:-go}" test -run '^$' -bench "Carriers/^($(IFS='|' && echo "$*"))\$/" -benchtime 3x -count "$rounds" -timeout 1h . | awk -v carriers="$*" '
	/^BenchmarkCarriers\// {
		split($1, name, "/")
		what = name[3]; sub(/-[0-9]+$/, "", what)
		key = name[2] SUBSEP what
		n[key]++
		for (i = 3; i < NF; i += 2) value[key, $(i + 1), n[key]] = $i
	}
	/FAIL|panic|---/ { print > "/dev/stderr"; failed = 1 }
	function median(carrier, what, unit,   key, i, j, t, v) {
		key = carrier SUBSEP what
		if (!(key in n)) return -1
		for (i = 1; i <= n[key]; i++) v[i] = value[key, unit, i] + 0
		for (i = 2; i <= n[key]; i++) for (j = i; j > 1 && v[j - 1] > v[j]; j--) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t }
		return v[int((n[key] + 1) / 2)]
	}
	function cell(figure, cpu, form) {
		printf "%18s", figure < 0 ? "-" : sprintf(form " (%.0f)", figure, cpu)
	}
	END {
		printf "%-8s%18s%18s%18s%18s%18s%18s\n", "carrier", "sandbox", "exec", "in MB/s", "out MB/s", "tree in", "tree out"
		count = split(carriers, list, " ")
		for (c = 1; c <= count; c++) {
			one = list[c]
			printf "%-8s", one
			split("sandbox exec in out archive_in archive_out", whats, " ")
			for (w = 1; w <= 6; w++) {
				what = whats[w]
				if (one == "plain" && what == "sandbox") what = "exec"
				if (what == "in" || what == "out") cell(median(one, what, "MB/s"), median(one, what, "cpu-ms/op"), "%.0f")
				else { ms = median(one, what, "ns/op"); cell(ms < 0 ? ms : ms / 1e6, median(one, what, "cpu-ms/op"), "%.1f") }
			}
			printf "\n"
		}
		exit failed
	}'
