#!/bin/bash
# Runs in a place: the probes of the corpus that apply there, under the policies of
# test/evasions. Prints how many ran, how many there are, how many failed, and how many
# are not held as test/evasions/not-held.tsv says. Our own are counted where all apply.
#
# FURTHER=1  gVisor: also those about files, arguments, the supervisor and the network
set -u
here=$(cd "$(dirname "$0")" && pwd)
[ -e /dev/fd/0 ] || { echo "probes: no /dev/fd" >&2; exit 2; }
fallbacks=$("$here/agentsh" detect 2>/dev/null | sed -n 's/^A session opens here only with degraded: \[\([^]]*\)\].*/\1/p')
out=${TMPDIR:-/tmp}/probes.out
RACE_N=$(cat "$here/tries")
export RACE_N EVASIONS=$here/corpus PROBE_BIN_DIR=$here/built DEGRADED OWN=no
# some runs probes of categories with the words of degraded given.
some() {
	DEGRADED=$1
	shift
	"$here/repo/test/evasions/run.sh" "$@" >>"$out" 2>&1
}
: >"$out"
some "$fallbacks" command shell signal kernel control ${FURTHER:+args net}
if [ -n "${FURTHER:-}" ]; then
	mapped="${fallbacks/file_server/mapped_files}, cgroup" # nothing limits memory in gVisor
	some "$mapped" file supervisor control
	DEGRADED=$mapped "$here/repo/test/evasions/own.sh" >>"$out" 2>&1
fi
cat "$out" >&2
# sum adds a field of all totals.
sum() { sed -n "s/^\([0-9]*\) \(own \)\?probes, \([0-9]*\) failed\(, \([0-9]*\) not held\)\?\$/0\\$1/p" "$out" | awk '{ n += $1 } END { print n + 0 }'; }
ran=$(awk 'NF > 3 && $2 ~ /^(command|args|shell|file|net|signal|supervisor|kernel|control|env|approve|exchange|exec_from)$/ && !/ error/ { n++ } END { print n + 0 }' "$out")
total=$(sum 1) failed=$(sum 3) open=$(sum 5)
[ "$total" -gt 0 ] || failed=all
printf 'probes: run\t%s\nprobes: of\t%s\nprobes: failed\t%s\nprobes: not held\t%s\n' "$ran" "$total" "$failed" "$open"
