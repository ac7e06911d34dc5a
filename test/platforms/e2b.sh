#!/bin/bash
# smoke.sh at E2B, by a WebSocket. Needs npm's @e2b/cli and E2B_API_KEY; TEMPLATE is a template with
# agentsh and what Dockerfile has: doc/platforms/e2b.md. Not tried.
# shellcheck disable=SC1091,SC2154 # lib.sh
set -euo pipefail
id=
remove() { [ -z "$id" ] || e2b sandbox kill "$id"; }
. "$(dirname "$0")/lib.sh"
needs e2b python3 E2B_API_KEY= TEMPLATE=
place_key
id=$(e2b sandbox create --detach --timeout 1800 "$TEMPLATE" | sed -n 's/^Sandbox created with ID \([^ ]*\) .*/\1/p')
[ -n "$id" ] || { echo "e2b sandbox create printed no ID" >&2; exit 1; }
e2b sandbox exec --user root "$id" 'umask 077; cat >/root/place.key' <"$dir/place.key"
e2b sandbox exec --user root --background "$id" 'agentsh serve --listen ws:0.0.0.0:8081 --key /root/place.key' </dev/null
PLACE_SHELL="e2b sandbox exec --user root $id sh" \
	"$here/smoke.sh" socket "wss://8081-$id.${E2B_DOMAIN:-e2b.app}/" --connect-key "$dir/place.key"
