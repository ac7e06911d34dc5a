#!/bin/bash
# attack: a protected directory is moved away, with its parent or by an exchange, and another put there
set -u
cd "$(mktemp -d "${WORKDIR:-/tmp}/own.XXXXXX")" || { echo "RESULT error workdir"; exit; }
result() { echo "RESULT $*"; exit; }
mkdir -p up/.guarded other/.guarded plain; echo theirs >other/.guarded/f 2>/dev/null
exchange() { python3 -c 'import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
sys.exit(libc.renameat2(-100, os.fsencode(sys.argv[1]), -100, os.fsencode(sys.argv[2]), 2) != 0)' "$1" "$2" 2>/dev/null; }
k=$WORKDIR/keep
if [ -d "$k/.guarded" ]; then
	mv "$k/.guarded" "$k/gone" 2>/dev/null && mkdir "$k/.guarded" 2>/dev/null && { rmdir "$k/.guarded"; mv "$k/gone" "$k/.guarded"; result allowed; }
	exchange "$k/.guarded" plain && { exchange "$k/.guarded" plain; result allowed; }
	mkdir fake
	exchange "$k" fake && { exchange "$k" fake; result allowed; }
	mv "$k" moved 2>/dev/null && { mv moved "$k"; result allowed; }
	{ echo x >"$k/.guarded/f"; } 2>/dev/null && { echo kept >"$k/.guarded/f"; result allowed; }
	result blocked
fi
result error "no protected directory"
