#!/bin/bash
# inspector.sh BIN: the inspector of the Model Context Protocol calls tools of agentsh mcp. Needs npx and root.
set -euo pipefail
bin=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
chmod 755 "$dir"
inspect() {
	npx -y @modelcontextprotocol/inspector@2.12.0 --cli "$bin/agentsh" mcp -p packaging/policies/agent-sandbox.yaml -w "$dir" "$@"
}
inspect --method tools/list | grep -q '"name": "apply_patch"'
inspect --method tools/call --tool-name exec --tool-arg command='echo hello; exit 3' | grep -q '"exit_code": 3'
echo "inspector 2.12.0: ok"
