#!/bin/bash
# attack: a file whose writes are led elsewhere is changed itself: the outside tells
# contained: the writes are seen to work
set -u
cd "$(mktemp -d "${WORKDIR:-/tmp}/own.XXXXXX")" || { echo "RESULT error workdir"; exit; }
result() { echo "RESULT $*"; exit; }
f=$WORKDIR/led/original worked=0
try() { "$@" >/dev/null 2>&1 && worked=1; }
# shellcheck disable=SC2016 # the inner shell expands it
try bash -c 'echo x >"$0"' "$f"
try truncate -s 0 "$f"
try python3 -c 'import os, sys; os.truncate(sys.argv[1], 0)' "$f"
try dd if=/dev/zero of="$f" bs=1 count=4 conv=notrunc
try python3 -c 'import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
os.ftruncate(fd, 8)
mmap.mmap(fd, 8)[0:1] = b"X"' "$f"
ln -s "$f" link; try bash -c 'echo x >link'
ln "$f" name 2>/dev/null && try bash -c 'echo x >name'
echo x >other; try mv -f other "$f"
python3 -c 'import os, sys
dir = os.open(os.path.dirname(sys.argv[1]), os.O_RDONLY)
os.write(os.open("original", os.O_WRONLY | os.O_TRUNC, dir_fd=dir), b"x")' "$f" 2>/dev/null
mv "$f" moved 2>/dev/null && try bash -c 'echo x >moved'
[ -e "$f" ] && try rm -f "$f"
[ $worked = 1 ] && result allowed
result blocked
