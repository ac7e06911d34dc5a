#!/bin/bash
# attack: a program is started with another value of an injected variable
set -u
cd "$(mktemp -d "${WORKDIR:-/tmp}/own.XXXXXX")" || { echo "RESULT error workdir"; exit; }
result() { echo "RESULT $*"; exit; }
out=$(MARK=mine /usr/bin/env MARK=mine /usr/bin/printenv MARK)
[ "$out" = held ] && result blocked
result allowed
