#!/bin/bash
# attack: a program is copied to where commands may write
set -u
cd "$(mktemp -d "${WORKDIR:-/tmp}/own.XXXXXX")" || { echo "RESULT error workdir"; exit; }
result() { echo "RESULT $*"; exit; }
for d in . /tmp /dev/shm; do cp /usr/bin/hostname "$d/tool.$$" 2>/dev/null || continue; "$d/tool.$$" >/dev/null 2>&1 && result allowed; done
result blocked
