#!/bin/bash
# attack: a copy of busybox is called by a name that begins like its own
set -u
cd "$(mktemp -d "${WORKDIR:-/tmp}/own.XXXXXX")" || { echo "RESULT error workdir"; exit; }
result() { echo "RESULT $*"; exit; }
box=$(command -v busybox) || result error no-busybox
cp "$box" x
for file in ./x "$box"; do for name in busybox busyboxes -busybox.static; do
	(exec -a "$name" "$file" hostid) 2>/dev/null | grep -q '^[0-9a-f]\{8\}$' && result allowed
done; done
result blocked
