#!/bin/bash
# install.sh DIR: the agent programs of the tests, each pinned. What is there in
# its version stays.
set -euo pipefail
mkdir -p "$1"
dir=$(cd "$1" && pwd)

# npm_program NAME PACKAGE VERSION: installs a package into DIR/NAME-VERSION.
npm_program() {
	local name=$1 package=$2 version=$3
	local to=$dir/$name-$version
	if [ ! -e "$to/installed" ]; then
		rm -rf "$to"
		mkdir -p "$to"
		npm install --no-audit --no-fund --loglevel=error --prefix "$to" "$package@$version"
		touch "$to/installed"
	fi
	ln -sfn "$name-$version" "$dir/$name"
}

npm_program claude @anthropic-ai/claude-code 2.1.197
npm_program codex @openai/codex 0.169.0
npm_program gemini @google/gemini-cli 0.61.0
npm_program opencode opencode-ai 1.18.33
npm_program mcp-filesystem @modelcontextprotocol/server-filesystem 2026.8.31
npm_program mcp-everything @modelcontextprotocol/server-everything 2026.8.31
