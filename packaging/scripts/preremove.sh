#!/bin/sh
# Before the package goes, shells that agentsh stands in for are put back: without
# its policy they would run nothing any more.
set -eu
case ${1:-remove} in
upgrade | failed-upgrade | deconfigure) exit 0 ;;
esac
# A shell that is the shim runs this script in a session, where nobody is root.
if [ "$(id -u)" != 0 ]; then
	echo "agentsh stands in for the shells of this system: run 'agentsh shim uninstall' first" >&2
	exit 1
fi
if [ -e /usr/lib/agentsh/shells/manifest.json ]; then
	/usr/bin/agentsh shim uninstall
fi
