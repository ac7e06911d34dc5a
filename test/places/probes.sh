#!/bin/bash
# Runs in a place: the probes of the corpus that apply there, under the policies of
# test/evasions, and prints how many ran, failed and are left open.
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
total=$(sed -n 's/^\([0-9]*\) probes, .*/\1/p' "${TMPDIR:-/tmp}/probes.out")
ran=$(awk '$2 ~ /^(command|shell|signal|kernel|control)$/ && $0 !~ / error/' "${TMPDIR:-/tmp}/probes.out" | wc -l)
failed=$(sed -n 's/^[0-9]* probes, \([0-9]*\) failed.*/\1/p' "${TMPDIR:-/tmp}/probes.out")
printf 'probes: run\t%s\nprobes: of\t%s\nprobes: failed\t%s\n' "$ran" "${total:-0}" "${failed:-all}"
