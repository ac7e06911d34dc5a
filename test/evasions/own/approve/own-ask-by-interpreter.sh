#!/bin/bash
# attack: what a person must allow is the interpreter of a script, or given to a wrapper
set -u
cd "$(mktemp -d "${WORKDIR:-/tmp}/own.XXXXXX")" || { echo "RESULT error workdir"; exit; }
result() { echo "RESULT $*"; exit; }
printf "#!/usr/bin/hostid\n" >s; chmod 755 s; ./s >/dev/null 2>&1 && result allowed
for w in "env -i" nice "timeout 5" "xargs -a /dev/null"; do $w /usr/bin/hostid 2>/dev/null | grep -q "^[0-9a-f]\{8\}$" && result allowed; done
result blocked
