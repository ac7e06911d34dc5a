#!/bin/bash
# Runs in a place: the probes of the corpus that apply there, under the policies of
# test/evasions. Prints how many ran, how many there are, how many failed, and how many
# are not held as test/evasions/not-held.tsv says. Those of own.sh follow the total, and
# are not counted.
set -u
here=$(cd "$(dirname "$0")" && pwd)
[ -e /dev/fd/0 ] || { echo "probes: no /dev/fd" >&2; exit 2; }
fallbacks=$("$here/agentsh" detect 2>/dev/null | sed -n 's/^A session opens here only with degraded: \[\([^]]*\)\].*/\1/p')
categories="command shell signal kernel control"
RACE_N=$(cat "$here/tries")
export DEGRADED=$fallbacks RACE_N EVASIONS=$here/corpus PROBE_BIN_DIR=$here/built
# shellcheck disable=SC2086 # a list
"$here/repo/test/evasions/run.sh" $categories >"${TMPDIR:-/tmp}/probes.out" 2>&1
cat "${TMPDIR:-/tmp}/probes.out" >&2
ran=$(awk '/^[0-9]+ probes, / { exit } $2 ~ /^(command|shell|signal|kernel|control)$/ && !/ error/' "${TMPDIR:-/tmp}/probes.out" | wc -l)
read -r total failed open < <(sed -n 's/^\([0-9]*\) probes, \([0-9]*\) failed, \([0-9]*\) not held$/\1 \2 \3/p' "${TMPDIR:-/tmp}/probes.out")
printf 'probes: run\t%s\nprobes: of\t%s\nprobes: failed\t%s\nprobes: not held\t%s\n' "$ran" "${total:-0}" "${failed:-all}" "${open:-0}"
