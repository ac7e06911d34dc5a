#!/bin/bash
# Checks a sandbox of OpenShell, by SSH: detect, a run with a commit, ten probes. Needs the openshell program with a
# gateway, ssh, and IMAGE: doc/platforms/openshell.md says what is in it. POLICY is OpenShell's policy. Not tried.
# shellcheck disable=SC1091,SC2154 # lib.sh
set -euo pipefail
made=
remove() { [ -z "$made" ] || openshell sandbox delete "$name"; }
. "$(dirname "$0")/lib.sh"
needs openshell ssh git IMAGE= POLICY=
agentctl=${AGENTCTL:-$root/bin/agentctl}
name=a-$(date +%H%M%S)-$$ # at most 19 characters
made=yes # from here on it may exist
openshell sandbox create --name "$name" --no-auto-providers --no-tty --from "$IMAGE" --policy "$POLICY" -- true
openshell sandbox ssh-config "$name" >"$dir/ssh_config"
alias=$(sed -n 's/^Host //p' "$dir/ssh_config" | head -1)
ssh=(ssh -F "$dir/ssh_config" -T -o BatchMode=yes "$alias")
# A shell without a command runs no files of a login.
enter='exec env HOME=/tmp/agentsh-home XDG_STATE_HOME=/tmp/agentsh-state sh'
"${ssh[@]}" agentsh detect --degraded nested_commands
git init -q -b main "$dir/repo"
git -C "$dir/repo" -c user.name=probe -c user.email=probe@example.com commit -q --allow-empty -m first
"$agentctl" run "$here/openshell/harness.yaml" --repo "$dir/repo" --out "$dir/out" \
	--backend exec --connect "exec:bash -c '${ssh[*]} < <(echo $enter; exec cat 2>/dev/null) | cat'"
git -C "$dir/repo" log --oneline --all | grep -q 'Add probe.txt' || { echo "openshell.sh: the run delivered no commit" >&2; exit 1; }
echo "done: $name holds"
