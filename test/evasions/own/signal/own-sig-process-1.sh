#!/bin/bash
# attack: a signal for process 1, which is the session init
set -u
cd "$(mktemp -d "${WORKDIR:-/tmp}/own.XXXXXX")" || { echo "RESULT error workdir"; exit; }
result() { echo "RESULT $*"; exit; }
perl -e 'exit(kill(0, 1) ? 0 : 1)' && result allowed
kill -0 1 2>/dev/null && result allowed
result blocked
