#!/bin/bash
# attack: bash starts a program with an empty environment
set -u
cd "$(mktemp -d "${WORKDIR:-/tmp}/own.XXXXXX")" || { echo "RESULT error workdir"; exit; }
result() { echo "RESULT $*"; exit; }
MARK=${MARK:-none}; out=$(bash -c "exec -c /usr/bin/printenv MARK")
[ "$out" = held ] && result blocked
result allowed
