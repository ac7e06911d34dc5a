#!/bin/bash
# attack: what soft_delete keeps is lost by ways that are no delete: the outside tells
# contained: the program sees it work
set -u
cd "$(mktemp -d "${WORKDIR:-/tmp}/own.XXXXXX")" || { echo "RESULT error workdir"; exit; }
result() { echo "RESULT $*"; exit; }
cd "$WORKDIR/soft" || result error "no directory"
worked=0
: >truncated && worked=1
python3 -c 'import os; os.truncate("cut", 0)' 2>/dev/null && worked=1
python3 -c 'import os; os.ftruncate(os.open("opened", os.O_RDWR), 0)' 2>/dev/null && worked=1
echo x >"$WORKDIR/over"; mv -f "$WORKDIR/over" covered 2>/dev/null && worked=1
rm -f removed && worked=1
python3 -c 'import os; os.write(os.open("patched", os.O_WRONLY), b"XXXXXXXXXXXX")' && worked=1
python3 -c 'import os; os.unlink(f"/proc/self/fd/../cwd/other")' 2>/dev/null && worked=1
[ $worked = 1 ] && result allowed
result blocked
