#!/bin/sh
# The package stays while agentsh stands in for shells: without its policy they would
# run nothing any more.
set -eu
case ${1:-remove} in
upgrade | failed-upgrade | deconfigure) exit 0 ;;
esac
if [ -e /usr/lib/agentsh/shells/manifest.json ]; then
	echo "agentsh stands in for the shells of this system: run 'agentsh shim uninstall' first" >&2
	exit 1
fi
