#!/bin/bash
# agentsh policy test with 1,000 cases, and --mutate on agent-strict.
#
#   policy.sh ROUNDS
set -eu
here=$(cd "$(dirname "$0")" && pwd)
agentsh=$here/../bin/agentsh packs=$here/../packaging/policies
dir=$(mktemp -d /var/tmp/agentsh-policy.XXXXXX)
trap 'rm -rf "$dir"' EXIT
cp "$packs"/*.yaml "$dir/"
{
	echo 'policy: agent-strict.yaml'
	echo 'tests:'
	for i in $(seq 250); do
		echo "  - {name: status $i, command: [git, status, a$i], expect: allow}"
		echo "  - {name: push $i, command: [git, push, origin, b$i], expect: deny}"
		echo "  - {name: source $i, file: {path: '\${WORKSPACE}/src/$i.go', operation: write}, expect: allow}"
		echo "  - {name: hook $i, file: {path: '\${PROJECT_ROOT}/.git/hooks/$i', operation: write}, expect: deny}"
	done
} >"$dir/thousand_test.yaml"
median() { sort -n | awk '{ v[NR] = $1 } END { printf "%.3f", v[int((NR + 1) / 2)] / 1e6 }'; }
timed() {
	local began=${EPOCHREALTIME/./}
	"$@" >"$dir/out" || { cat "$dir/out" >&2; return 1; }
	echo $((${EPOCHREALTIME/./} - began))
}
printf 'policy test, 1000 cases                %s s (median of %d)\n' "$(for _ in $(seq "$1"); do timed "$agentsh" policy test "$dir/thousand_test.yaml"; done | median)" "$1"
printf 'policy test --mutate of agent-strict   %s s (median of %d)\n' "$(for _ in $(seq "$1"); do timed "$agentsh" policy test --mutate "$dir/agent-strict_test.yaml"; done | median)" "$1"
