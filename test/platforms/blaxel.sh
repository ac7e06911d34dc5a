#!/bin/bash
# smoke.sh at Blaxel, by a WebSocket. Needs the bl program, logged in (bl login), curl, and agentsh of this
# release in bin. BL_REGION is the region. Not tried.
# shellcheck disable=SC1091,SC2154 # lib.sh
set -euo pipefail
made=
remove() { [ -z "$made" ] || bl delete sandbox "$name"; }
. "$(dirname "$0")/lib.sh"
needs bl curl python3
place_key
mkdir "$dir/image"
cp "$root/bin/agentsh" "$dir/place.key" "$dir/image/"
{
	cat "$here/Dockerfile"
	echo 'COPY --from=ghcr.io/blaxel-ai/sandbox:latest /sandbox-api /usr/local/bin/sandbox-api'
	echo 'COPY agentsh /usr/bin/agentsh'
	echo 'COPY --chmod=600 place.key /root/place.key'
	echo 'ENTRYPOINT ["/usr/local/bin/sandbox-api"]'
} >"$dir/image/Dockerfile"
printf 'name = "%s"\ntype = "sandbox"\n%s' "$name" "${BL_REGION:+region = \"$BL_REGION\"$'\n'}" >"$dir/image/blaxel.toml"
made=yes # from here on it may exist
bl deploy --yes -d "$dir/image"
bl run sandbox "$name" --path /process \
	--data '{"name": "agentsh", "keepAlive": true, "command": "agentsh serve --listen ws:0.0.0.0:7000 --key /root/place.key"}'
# The preview is public: both ends of the stream need the key of the place.
(umask 077 && printf 'header = "Authorization: Bearer %s"\n' "$(bl token)" >"$dir/curl")
url=$(curl -fsS -K "$dir/curl" -H 'Content-Type: application/json' "https://api.blaxel.ai/v0/sandboxes/$name/previews" \
	-d '{"metadata": {"name": "place"}, "spec": {"port": 7000, "public": true}}' |
	python3 -c 'import json, sys; print(json.load(sys.stdin)["spec"]["url"])')
export name
# detect has no stream there: the process API runs it.
PLACE_SHELL="python3 $here/blaxel-shell.py" "$here/smoke.sh" socket "wss://${url#https://}/" --connect-key "$dir/place.key"
