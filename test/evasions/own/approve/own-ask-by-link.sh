#!/bin/bash
# attack: what a person must allow is called by another name
set -u
cd "$(mktemp -d "${WORKDIR:-/tmp}/own.XXXXXX")" || { echo "RESULT error workdir"; exit; }
result() { echo "RESULT $*"; exit; }
ln -s /usr/bin/hostid other; for p in ./other /usr/bin/../bin/hostid; do $p >/dev/null 2>&1 && result allowed; done
bash -c "exec -a ls /usr/bin/hostid" >/dev/null 2>&1 && result allowed
result blocked
