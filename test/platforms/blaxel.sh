#!/bin/bash
# smoke.sh at Blaxel, by a WebSocket. Needs the bl program, logged in (bl login), curl, and agentsh of this
# release in bin. BL_REGION is the region. Not tried.
# shellcheck disable=SC1091,SC2154 # lib.sh
set -euo pipefail
made=
remove() { [ -z "$made" ] || bl delete sandbox "$name"; }
. "$(dirname "$0")/lib.sh"
needs bl curl python3
built agentsh
place_key
mkdir "$dir/image"
cp "$root/bin/agentsh" "$dir/image/"
{
	cat "$here/Dockerfile"
	echo 'COPY --from=ghcr.io/blaxel-ai/sandbox:latest /sandbox-api /usr/local/bin/sandbox-api'
	echo 'COPY agentsh /usr/bin/agentsh'
	echo 'ENTRYPOINT ["/usr/local/bin/sandbox-api"]'
} >"$dir/image/Dockerfile"
printf 'name = "%s"\ntype = "sandbox"\n%s' "$name" "${BL_REGION:+region = \"$BL_REGION\"$'\n'}" >"$dir/image/blaxel.toml"
made=yes # from here on it may exist
bl deploy --yes -d "$dir/image"
token=$(bl token)
(umask 077 && printf 'header = "%s"\n' "Authorization: Bearer $token" "X-Blaxel-Authorization: Bearer $token" \
	'Content-Type: application/json' >"$dir/curl")
api=https://api.blaxel.ai/v0/sandboxes/$name
# field prints a field of an object in JSON, as in: field spec url.
field() { python3 -c 'import functools, json, sys; print(functools.reduce(lambda o, k: o[k], sys.argv[1:], json.load(sys.stdin)))' "$@"; }
# The key of the place is in no layer of the image, and in no argument.
box=$(curl -fsS -K "$dir/curl" "$api" | field metadata url)
(umask 077 && printf '{"content": "%s\\n", "permissions": "0600"}' "$(cat "$dir/place.key")" >"$dir/put")
curl -fsS -K "$dir/curl" -X PUT "$box/filesystem/%2Froot%2Fplace.key" --data "@$dir/put" >/dev/null
bl run sandbox "$name" --path /process --data '{"name": "agentsh", "keepAlive": true, "timeout": 0,
	"command": "agentsh serve --listen ws:0.0.0.0:7000 --key /root/place.key"}'
# The preview wants a token too.
url=$(curl -fsS -K "$dir/curl" "$api/previews" -d '{"metadata": {"name": "place"}, "spec": {"port": 7000, "public": false}}' | field spec url)
ends=$(date -u -d '+2 hours' +%Y-%m-%dT%H:%M:%SZ)
curl -fsS -K "$dir/curl" "$api/previews/place/tokens" -d "{\"metadata\": {\"name\": \"smoke\"}, \"spec\": {\"expiresAt\": \"$ends\"}}" |
	field spec token | sed 's/^/X-Blaxel-Preview-Token: /' >>"$dir/place.key"
export name
# detect has no stream there: the process API runs it.
PLACE_SHELL="python3 $here/blaxel-shell.py" "$here/smoke.sh" socket "wss://${url#https://}/" --connect-key "$dir/place.key"
