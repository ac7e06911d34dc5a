#!/bin/bash
# Run the words given, which are env(1) with its assignments and a probe, in a sandbox of agentctl in a
# virtual machine. The probes of a category share one machine: a run whose agent does nothing. It is made
# for the first of them, and again when a probe has ended it. run.sh has made EV_VM, a directory, and ends what is left
# there. EV_VM_IMAGE is the image.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=${EV_ROOT:?}
probe=${*: -1}
category=$(basename "$(dirname "$probe")")
work=$EV_VM/$category
export XDG_STATE_HOME=$work/state HOME=$EV_VM
# What no command may see is in the environment of agentctl.
export AWS_SECRET_ACCESS_KEY=corpus GH_TOKEN=ghp_corpus_x OPENAI_API_KEY=corpus SSH_AUTH_SOCK=/corpus
# shellcheck source=test/evasions/sandbox.sh
. "$here/sandbox.sh"

# start_run makes the machine. It outlives this script.
start_run() {
	"$here/end-vm.sh" "$work"
	rm -rf "$work"
	mkdir -p "$work"
	describe_run "$category" "[bash, -c, 'echo agent at work; read -r x <> <(:)']" "$@"
	sed -i '$a image: probes' "$work/harness.yaml"
	mkdir -p "$work/repo"
	cp -r "$PROBE_BIN_DIR" "$work/repo/built"
	make_repository "$category" "$(dirname "$probe")"/*
	setsid "$root/bin/agentctl" run "$work/harness.yaml" --repo "$work/repo" --out "$work/out" --backend vm \
		--image "probes=$EV_VM_IMAGE" >"$work/log" 2>&1 </dev/null &
	run=$!
	echo "$run" >"$work/run"
	await_run
}

# await_run waits until the machine is there, and notes what is held. A probe that was cut meanwhile leaves it to the next one.
await_run() {
	wait_for_agent
	held >"$work/held.new"
	mv "$work/held.new" "$work/held"
}

execute() { timeout "${PROBE_TIMEOUT:-150}" "$root/bin/agentctl" sandbox exec --max-output 0 latest -- "$@"; }
held() { execute ls -AlnR --time-style=+ "$repo/project/held"; } # a category denies find -exec

if run=$(cat "$work/run" 2>/dev/null) && kill -0 "$run" 2>/dev/null; then
	[ -e "$work/held" ] || await_run
	execute true || start_run "$@"
else
	start_run "$@"
fi
id=$(basename "$(echo "$XDG_STATE_HOME"/agentsh/machines/*)")
box=/var/lib/agentsh/remote/$id
# The supervisor's number in the machine is unknown. That of a thread of its kernel is outside the session as well.
status=0
execute "${@:1:$#-1}" SUPERVISOR_PID=60 "FUSE_BACKING=/proc/1/root$box/tree/workspace/repo" "AUDIT_LOG=$box/audit.jsonl" \
	"$repo/probes/$category/$(basename "$probe")" || status=$?
# A machine that was ended has left nothing. run.sh looks at this file.
after=$(held) || exit "$status"
[ "$after" = "$(cat "$work/held")" ] || echo "$probe changed what is held" >>"$EV_VM/held"
exit "$status"
