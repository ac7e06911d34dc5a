#!/bin/bash
# conformance.sh BIN TOOLS: the conformance suite of the Model Context Protocol against agentctl mcp --listen. Needs npm and root.
# TOOLS gets the suite and the Node.js that it needs. What fails must be in conformance-baseline.yaml, and the other way round.
set -euo pipefail
bin=$(realpath "$1") here=$(realpath "$(dirname "$0")")
suite=$2/conformance-0.1.16
if [ ! -e "$suite/installed" ]; then
	rm -rf "$suite"
	mkdir -p "$suite"
	npm install --no-audit --no-fund --loglevel=error --prefix "$suite" node@22.23.3 @modelcontextprotocol/conformance@0.1.16
	touch "$suite/installed"
fi
node=$(realpath "$suite/node_modules/.bin/node")
dir=$(mktemp -d)
server='' proxy=''
finish() {
	[ -z "$proxy" ] || kill "$proxy" || true
	[ -z "$server" ] || { kill "$server" && wait "$server"; } || true
	rm -rf "$dir"
}
trap finish EXIT
# line FILE PATTERN waits for a line that sed finds, at most two minutes.
line() {
	local found
	for _ in $(seq 1200); do
		found=$(sed -n "s|$2|\\1|p;/$2/q" "$1")
		[ -z "$found" ] || { echo "$found"; return; }
		sleep 0.1
	done
}
git init -q "$dir/repo"
git -C "$dir/repo" -c user.name=test -c user.email=test@localhost commit -q --allow-empty -m first
XDG_STATE_HOME=$dir/state PATH=$bin:$PATH "$bin/agentctl" mcp --policy "$here/../../examples/policies/demo.yaml" --repo "$dir/repo" \
	--listen 127.0.0.1:0 </dev/null >/dev/null 2>"$dir/log" &
server=$!
token=$(line "$dir/log" '^agentctl: token: \(.*\)$')
url=$(line "$dir/log" '^agentctl: tools at \(.*\)$')
[ -n "$token" ] || { cat "$dir/log" >&2; exit 1; }
"$node" "$here/addtoken.js" "$url" "$token" >"$dir/port" &
proxy=$!
"$node" "$suite/node_modules/.bin/conformance" server --url "http://127.0.0.1:$(line "$dir/port" '^\(.*\)$')/mcp" \
	--expected-failures "$here/conformance-baseline.yaml" -o "$dir/results" >"$dir/said" || { cat "$dir/said" >&2; exit 1; }
sed -n '/=== SUMMARY/,$p' "$dir/said"
