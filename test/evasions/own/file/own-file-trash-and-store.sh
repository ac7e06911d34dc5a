#!/bin/bash
# attack: the trash and the checkpoints are read or changed from inside
set -u
cd "$(mktemp -d "${WORKDIR:-/tmp}/own.XXXXXX")" || { echo "RESULT error workdir"; exit; }
result() { echo "RESULT $*"; exit; }
[ -n "${STORE:-}" ] || result error "no store"
ls "$STORE" >/dev/null 2>&1 && result allowed
(: >"$STORE/x") 2>/dev/null && { rm "$STORE/x"; result allowed; }
for p in /proc/[0-9]*; do
	ls "$p/root$STORE" >/dev/null 2>&1 && result allowed
	for fd in "$p"/fd/*; do case $(readlink "$fd" 2>/dev/null) in "$STORE"*) result allowed ;; esac; done
done
mkdir m; mount --bind "$STORE" m 2>/dev/null && { umount m; result allowed; }
result blocked
