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

# The sandbox has other paths: the variables of the policies are theirs.
repo=/sandbox/workspace/repo startup=/usr/lib/agentsh/bash_startup.sh
mkdir "$work/policies" "$work/agents"
for file in "$here"/policies/*.yaml; do
	# shellcheck disable=SC2016 # a variable of the policy
	sed -e "s,\${STARTUP},$startup,; s,\${PROTECTED},$repo/project/held,; s,HOME: /home/sandbox,HOME: /sandbox/home," \
		-e "s,/packaging/policies,$root/packaging/policies," -e "s,\.\./\.\./\.\./*,/," "$file" >"$work/policies/$(basename "$file")"
done
policy=$work/policies/$category.yaml
for word; do
	case $word in ALLOWED_PORT=*) sed -i "s/ports: \[1\]/ports: [${word#*=}]/" "$policy" ;; esac
done
printf 'version: 1\nname: evasions\nextends: [policies/%s.yaml]\nenv_inject: {BASH_ENV: %s}\n' "$category" "$startup" >"$work/policy.yaml"
echo '# probes' >"$work/agents/prober.md"
cat >"$work/harness.yaml" <<-END
	agent: agents/prober.md
	role: prober
	runtime: command
	command: [sh, -c, 'echo agent at work; read x </dev/zero']
	policy: policy.yaml
	security: {enabled: false}
END
mkdir -p "$work/repo/probes/$category" "$work/repo/project/held"
cp -r "$probe" "$work/repo/probes/$category/"
echo held >"$work/repo/project/held/file"
git -C "$work/repo" init -q -b main
git -C "$work/repo" add -A
git -C "$work/repo" -c user.name=a -c user.email=a@example.com commit -q -m probe

"$root/bin/agentctl" run "$work/harness.yaml" --repo "$work/repo" --out "$work/out" \
	--backend ssh --connect ssh://root@place.example >"$work/log" 2>&1 &
run=$!
until grep -q 'agent at work' "$work/log"; do
	kill -0 "$run" 2>/dev/null || { cat "$work/log" >&2; false; }
	read -r -t 0.1 <> <(:) || :
done
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
