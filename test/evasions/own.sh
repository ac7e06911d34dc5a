#!/bin/bash
# Run our own probes (own/CATEGORY/*.sh) under own/policy.yaml and print a table.
#
#   own.sh          confined: each is blocked, those of control work
#   own.sh --bare   without agentsh: each attack works, which is what makes "blocked" mean something
#
# A probe ends with RESULT allowed, RESULT blocked or RESULT error WHY.
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
place=$(mktemp -d /var/tmp/own-evasions.XXXXXX) || exit 2
trap 'rm -rf "$place"' EXIT
chmod 755 "$place"
mkdir -p "$place/work"
cp -r "$here/own" "$place/work/probes"
: >"$place/outside"

confined() {
	(exec bash -c 'exec "$0" exec --config /dev/null -p "$1" -w "$2" --cwd "$2" --audit "$3" -- /usr/bin/env WORKDIR="$2" SUPERVISOR_PID=$$ /bin/bash "$4"' \
		"$root/bin/agentsh" "$here/own/policy.yaml" "$place/work" "$place/audit.jsonl" "$1") </dev/null 2>/dev/null
}

bare() { env WORKDIR="$place/work" MARK=outside SUPERVISOR_PID=$$ bash "$1" </dev/null 2>/dev/null; }

run=confined
[ "${1:-}" = --bare ] && run=bare
failed=0 total=0
for probe in "$place"/work/probes/*/*.sh; do
	category=$(basename "$(dirname "$probe")") id=$(basename "$probe" .sh)
	result=$($run "$probe" | sed -n 's/^RESULT //p' | tail -1)
	want=blocked
	if [ "$category" = control ] || [ $run = bare ]; then want=allowed; fi
	verdict=ok
	[ "$result" = $want ] || verdict=FAIL failed=$((failed + 1))
	total=$((total + 1))
	printf '%-28s %-11s %-20s %s\n' "$id" "$category" "${result:-none}" "$verdict"
done
echo "$total own probes, $failed failed"
[ "$failed" = 0 ]
