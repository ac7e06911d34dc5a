#!/bin/bash
# Run the words given, which are env(1) with its assignments and a probe, in a sandbox that agentctl
# makes over ssh, on this machine. run.sh has made EV_SSH: a directory with an ssh program that
# starts a sshd of its own. Each probe has a run, whose agent does nothing.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=${EV_ROOT:?}
work=$(mktemp -d "$EV_SSH/run.XXXXXX")
probe=${*: -1}
category=$(basename "$(dirname "$probe")")
export XDG_STATE_HOME=$work/state PATH="$EV_SSH/bin:$PATH"
run='' status=1
end() {
	trap '' EXIT INT TERM
	"$root/bin/agentctl" sandbox delete --force latest >/dev/null 2>&1 || :
	[ -z "$run" ] || { kill "$run"; wait "$run"; } 2>/dev/null || :
	"$root/bin/agentctl" gc --backend ssh --connect ssh://root@place.example >/dev/null 2>&1 || :
	[ -n "${KEEP:-}" ] || rm -rf "$work"
	exit "$status"
}
trap end EXIT
trap 'status=143; exit' INT TERM

# shellcheck source=test/evasions/sandbox.sh
. "$here/sandbox.sh"
describe_run "$category" "[sh, -c, 'echo agent at work; read x </dev/zero']" "$@"
make_repository "$category" "$probe"

"$root/bin/agentctl" run "$work/harness.yaml" --repo "$work/repo" --out "$work/out" \
	--backend ssh --connect ssh://root@place.example >"$work/log" 2>&1 &
run=$!
wait_for_agent
box=$(echo "$EV_SSH"/place/agentsh/remote/*)
[ -d "$box/tree" ] || { echo "launch-ssh.sh: no sandbox in $EV_SSH/place" >&2; false; }
pid=$(sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' "$box/labels.json")
held() { find "$box/tree/workspace/repo/project/held" -exec stat -c '%n %s %a %u' {} + | sed "s,$box,,"; }
before=$(held)
status=0
"$root/bin/agentctl" sandbox exec --max-output 0 latest -- "${@:1:$#-1}" "SUPERVISOR_PID=$pid" \
	"FUSE_BACKING=/proc/$pid/root$box/tree/workspace/repo" "AUDIT_LOG=$box/audit.jsonl" \
	"$repo/probes/$category/$(basename "$probe")" || status=$?
# A supervisor that was killed has left nothing. run.sh looks at this file.
[ ! -d "$box/tree" ] || [ "$(held)" = "$before" ] || echo "$probe changed what is held" >>"$EV_SSH/held"
