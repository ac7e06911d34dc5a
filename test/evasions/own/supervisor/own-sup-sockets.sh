#!/bin/bash
# attack: the sockets of running sessions are looked for, to answer or to reload
set -u
cd "$(mktemp -d "${WORKDIR:-/tmp}/own.XXXXXX")" || { echo "RESULT error workdir"; exit; }
result() { echo "RESULT $*"; exit; }
for d in /run/agentsh /run/user/*/agentsh "${XDG_RUNTIME_DIR:-/run}/agentsh"; do ls "$d"/*/socket >/dev/null 2>&1 && result allowed; done
grep -q "agentsh" /proc/net/unix 2>/dev/null && result allowed
result blocked
