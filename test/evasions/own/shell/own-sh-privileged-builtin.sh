#!/bin/bash
# attack: a shell that reads no startup file signals the supervisor by its own builtin
set -u
cd "$(mktemp -d "${WORKDIR:-/tmp}/own.XXXXXX")" || { echo "RESULT error workdir"; exit; }
result() { echo "RESULT $*"; exit; }
: "${SUPERVISOR_PID:=$$}"
for shell in "bash -p" "bash --posix" sh dash; do $shell -c "kill -0 $SUPERVISOR_PID" 2>/dev/null && result allowed; done
result blocked
