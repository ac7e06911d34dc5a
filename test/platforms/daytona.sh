#!/bin/bash
# smoke.sh at Daytona (v2), by SSH. Needs the daytona program, logged in, and DAYTONA_API_KEY.
# DAYTONA_SSH names the gateway of another region. Not tried.
# shellcheck disable=SC1091,SC2154 # lib.sh
set -euo pipefail
made=
remove() { [ -z "$made" ] || daytona delete "$name"; }
. "$(dirname "$0")/lib.sh"
needs daytona ssh python3 DAYTONA_API_KEY=
made=yes # from here on it may exist
daytona create --name "$name" --dockerfile "$here/Dockerfile" --auto-stop 30
id=$(daytona info "$name" --format json | python3 -c 'import json, sys; print(json.load(sys.stdin)["id"])')
# The key is in the user's name, so it stands in a file and not in arguments.
(umask 077 && cat >"$dir/ssh_config" <<-EOF
	Host sandbox
	  HostName ${DAYTONA_SSH:-proxy.app.daytona.io}
	  Port 2222
	  User "$id#$DAYTONA_API_KEY"
	  StrictHostKeyChecking accept-new
	  UserKnownHostsFile $dir/known_hosts
EOF
)
# The SSH server in the sandbox can come up some seconds after it.
# shellcheck disable=SC2016 # the inner shell expands it
timeout 60 bash -c 'until ssh -F "$0" -T -o BatchMode=yes sandbox true; do read -rt 2 <> <(:) || :; done' "$dir/ssh_config"
"$here/smoke.sh" exec "exec:ssh -F $dir/ssh_config -T -o BatchMode=yes sandbox sh"
