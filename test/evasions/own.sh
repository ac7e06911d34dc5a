#!/bin/bash
# Run our own probes (own/CATEGORY/*.sh) under own/policy.yaml, or a policy.yaml
# of the category, and print a table.
#
#   own.sh          confined: each is blocked, those of control work
#   own.sh --bare   without agentsh: each attack works, which is what makes "blocked" mean something
#
# A probe ends with RESULT allowed, RESULT blocked or RESULT error WHY. One whose
# header says "contained" sees its work succeed: what counts is that the outside is intact.
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
place=$(mktemp -d /var/tmp/own-evasions.XXXXXX) || exit 2
trap 'rm -rf "$place"' EXIT
chmod 755 "$place"
mkdir -p "$place/work"
cp -r "$here/own" "$place/work/probes"
: >"$place/outside"
mkdir -p "$place/state/agentsh" && mkdir -m 700 "$place/state/agentsh/store"
store=$place/state/agentsh/store
export XDG_STATE_HOME=$place/state

# Below another listener, as run.sh has it.
below=() flags=()
[ -z "${DEGRADED:-}" ] || flags=(--degraded "${DEGRADED// /}") # words, where the environment needs them
if [ -n "${BESIDE:-}" ]; then
	cp "${OUTER:-$root/out/outer}" "$place/outer"
	below=("$place/outer" "$BESIDE") flags=(--degraded call_rules)
fi

# What the file probes aim at, as it is before each.
precious=(truncated cut opened covered removed patched other)
fixtures() {
	rm -rf "$place"/work/{keep,led,away,soft}
	mkdir -p "$place"/work/{keep/.guarded,led,away,soft}
	echo kept >"$place/work/keep/.guarded/f"
	echo original >"$place/work/led/original"
	for name in "${precious[@]}"; do echo "precious $name" >"$place/work/soft/$name"; done
}

# outside tells whether all of that is still to be had.
outside() {
	[ "$(cat "$place/work/keep/.guarded/f" "$place/work/led/original" 2>/dev/null)" = $'kept\noriginal' ] || { echo changed; return; }
	for name in "${precious[@]}"; do
		grep -rqx "precious $name" "$place/work/soft" "$store" || { echo lost; return; }
	done
	if [ -e "$store/x" ]; then echo changed; else echo intact; fi
}

# Landlock enforces exec_from: without it neither the key nor its probes are there.
cp "$here/own/policy.yaml" "$place/policy.yaml"
if [[ " ${DEGRADED:-} " == *[\ ,]landlock[\ ,]* ]]; then
	sed -i '/^exec_from:/d' "$place/policy.yaml"
	rm -rf "$place/work/probes/exec_from"
fi

[[ ${DEGRADED:-} != *mapped_files* ]] || rm -rf "$place/work/probes/args" # git fails there

confined() {
	local policy=$here/own/$category/policy.yaml
	[ -e "$policy" ] || policy=$place/policy.yaml
	# shellcheck disable=SC2016 # the inner shell expands them
	(exec "${below[@]}" bash -c 'exec "$0" exec --config /dev/null -p "$1" -w "$2" --cwd "$2" --audit "$3" "${@:6}" -- /usr/bin/env WORKDIR="$2" STORE="$5" SUPERVISOR_PID=$$ /bin/bash "$4"' \
		"$root/bin/agentsh" "$policy" "$place/work" "$place/audit.jsonl" "$1" "$store" "${flags[@]}") </dev/null 2>/dev/null
}

bare() { env WORKDIR="$place/work" STORE="$store" MARK=outside SUPERVISOR_PID=$$ bash "$1" </dev/null 2>/dev/null; }

run=confined
[ "${1:-}" = --bare ] && run=bare
failed=0 total=0
for probe in "$place"/work/probes/*/*.sh; do
	category=$(basename "$(dirname "$probe")") id=$(basename "$probe" .sh)
	fixtures
	result=$($run "$probe" | sed -n 's/^RESULT //p' | tail -1)
	result+=:$(outside)
	want=blocked:intact
	if [ "$category" = control ] || [ $run = bare ] || grep -q '^# contained' "$probe"; then want=allowed:intact; fi
	if [ $run = bare ] && grep -q '^# contained' "$probe"; then want='allowed:[cl]*'; fi
	verdict=ok
	if [ "$id:$result" = own-sup-init-memory:allowed:intact ] && [[ $(uname -r) == *gvisor* ]]; then
		result+=" (not held)" want=$result # gVisor lists the numbers of descriptors; none can be read
	fi
	# shellcheck disable=SC2053 # a pattern
	[[ $result == $want ]] || verdict=FAIL failed=$((failed + 1))
	total=$((total + 1))
	printf '%-28s %-11s %-28s %s\n' "$id" "$category" "$result" "$verdict"
done
echo "$total own probes, $failed failed"
[ "$failed" = 0 ]
