#!/bin/bash
# attack: a signal goes to the process group of the supervisor by a negative number
set -u
cd "$(mktemp -d "${WORKDIR:-/tmp}/own.XXXXXX")" || { echo "RESULT error workdir"; exit; }
result() { echo "RESULT $*"; exit; }
: "${SUPERVISOR_PID:=$$}"
perl -e 'exit((kill(0, -$ARGV[0]) || kill(0, $ARGV[0])) ? 0 : 1)' "$SUPERVISOR_PID" && result allowed
result blocked
