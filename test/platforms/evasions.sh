#!/bin/bash
# Runs the probes beside it in a sandbox. Each must be blocked, and ordinary work must go on.
set -u
here=$(cd "$(dirname "$0")" && pwd)
export WORKDIR=/tmp
failed=0
for probe in "$here"/own-*.sh; do
	want=blocked
	[ "$(basename "$probe")" != own-ok-work.sh ] || want=allowed
	result=$(/usr/bin/env bash "$probe" </dev/null 2>/dev/null | sed -n 's/^RESULT //p' | tail -1)
	verdict=ok
	[ "$result" = $want ] || verdict=FAIL failed=$((failed + 1))
	printf '%-28s %-10s %s\n' "$(basename "$probe" .sh)" "${result:-none}" "$verdict"
done
echo "$failed failed"
[ "$failed" = 0 ]
