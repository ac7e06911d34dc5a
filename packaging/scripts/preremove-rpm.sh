#!/bin/sh
# As preremove.sh; rpm says how many of the package remain.
set -eu
[ "${1:-0}" = 0 ] || exit 0
if [ -e /usr/lib/agentsh/shells/manifest.json ]; then
	echo "agentsh stands in for the shells of this system: run 'agentsh shim uninstall' first" >&2
	exit 1
fi
