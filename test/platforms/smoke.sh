#!/bin/bash
# Checks a place: detect, the demo, ten of our own probes. Nothing stays, at the place or here.
#
#   test/platforms/smoke.sh BACKEND ADDRESS [OPTION OF agentctl run...]
#   test/platforms/smoke.sh exec 'exec:docker exec -i work sh'
#
# The place needs bash, git, perl, python3 and Go, as Dockerfile has them. PLACE_SHELL is a
# command that leads to a shell there, for detect; addresses of exec and ssh have one.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,8s/^# \?//p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
agentctl=${AGENTCTL:-$root/bin/agentctl}
backend=$1 address=$2
shift 2
there=(--backend "$backend" --connect "$address" "$@")
[ -x "$agentctl" ] || { echo "smoke.sh: $agentctl is missing: run make build, or set AGENTCTL" >&2; exit 2; }

work=$(mktemp -d /var/tmp/agentsh-smoke.XXXXXX)
# A run that was cut off leaves a sandbox until its lease ends; gc removes it at once.
finish() {
	local status=$?
	trap '' INT TERM HUP
	"$agentctl" gc "${there[@]}" >"$work/gc.log" 2>&1 || { cat "$work/gc.log" >&2; echo "smoke.sh: gc failed" >&2; [ $status -ne 0 ] || status=1; }
	rm -rf "$work"
	exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
export XDG_STATE_HOME=$work/state

say() { printf '\n== %s\n' "$*"; }

# in_place runs a script in a shell of the place.
in_place() {
	local command=${PLACE_SHELL:-}
	case $address in
	exec:*) command=${command:-${address#exec:}} ;;
	ssh://*) command=${command:-ssh -T -o BatchMode=yes ${address%%\?*} sh} ;;
	esac
	[ -n "$command" ] || { echo "no shell of the place is known: set PLACE_SHELL" >&2; return 3; }
	eval "$command" <<<"$1"
}

say "demo"
"$root/examples/fix-bug/prepare.sh"
git clone -q "$root/examples/fix-bug/repo" "$work/repo"
"$agentctl" run "$root/examples/fix-bug/harness.yaml" --repo "$work/repo" --out "$work/demo" "${there[@]}"
git -C "$work/repo" log --oneline --all | grep -q 'join slots that touch' || { echo "smoke.sh: the demo delivered no commit" >&2; exit 1; }

say "detect"
# The run has sent a program unless the place has one.
# shellcheck disable=SC2016 # the shell of the place expands it
in_place 'for p in "$(command -v agentsh)" "${HOME:-/none}"/.cache/agentsh/* /var/tmp/agentsh-programs-*/*; do
	[ -x "$p" ] && [ -f "$p" ] && { "$p" detect || :; exit 0; }
done; echo "no agentsh at the place" >&2; exit 1'

say "ten evasions"
harness=$work/evasions
mkdir -p "$harness/skills/evasions" "$harness/agents"
probes=(
	command/own-cmd-fd-of-denied command/own-cmd-loader-copy command/own-cmd-shebang-denied args/own-arg-global-options
	env/own-env-exec-c env/own-env-switched file/own-file-absent-name kernel/own-kern-nested-namespaces
	signal/own-sig-process-1 supervisor/own-sup-init-memory
)
cp "$root/test/evasions/own/control/own-ok-work.sh" "$harness/skills/evasions/"
for probe in "${probes[@]}"; do cp "$root/test/evasions/own/$probe.sh" "$harness/skills/evasions/"; done
cp "$here/evasions.sh" "$harness/skills/evasions/evasions.sh"
cp "$here/SKILL.md" "$harness/skills/evasions/SKILL.md"
cp "$here/SKILL.md" "$harness/agents/prober.md"
# exec_from would not let the probes run, and they are below /sandbox.
sed "/^exec_from:/d; s|'\${HOME}/\*\*'|&, '/sandbox/**'|" "$root/test/evasions/own/policy.yaml" >"$harness/policy.yaml"
grep -q "'/sandbox/\*\*'" "$harness/policy.yaml" || { echo "smoke.sh: the policy of the probes has changed" >&2; exit 1; }
cp "$here/evasions.yaml" "$harness/harness.yaml"
"$agentctl" run "$harness/harness.yaml" --repo "$work/repo" --out "$work/probes" "${there[@]}"

say "done: $backend holds"
