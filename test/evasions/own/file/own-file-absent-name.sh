#!/bin/bash
# attack: a protected name that is not there is made, by each call that makes names
set -u
cd "$(mktemp -d "${WORKDIR:-/tmp}/own.XXXXXX")" || { echo "RESULT error workdir"; exit; }
result() { echo "RESULT $*"; exit; }
echo x >file; mkdir dir
made() { if [ -e .guarded ] || [ -L .guarded ]; then result allowed; fi; }
{ echo x >.guarded; } 2>/dev/null; made
mkdir .guarded 2>/dev/null; made
mv file .guarded 2>/dev/null; made
mv dir .guarded 2>/dev/null; made
ln file .guarded 2>/dev/null; made
ln -s file .guarded 2>/dev/null; made
mkfifo .guarded 2>/dev/null; made
python3 - <<'PY' 2>/dev/null
import os, socket
try: socket.socket(socket.AF_UNIX).bind(".guarded")
except OSError: pass
fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o644)
os.link(f"/proc/self/fd/{fd}", ".guarded", follow_symlinks=True)
PY
made
result blocked
