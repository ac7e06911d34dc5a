#!/bin/bash
# attack: a user namespace gives the capabilities that a mount needs
set -u
cd "$(mktemp -d "${WORKDIR:-/tmp}/own.XXXXXX")" || { echo "RESULT error workdir"; exit; }
result() { echo "RESULT $*"; exit; }
unshare -Urm true 2>/dev/null && result allowed
unshare -Urn true 2>/dev/null && result allowed
result blocked
