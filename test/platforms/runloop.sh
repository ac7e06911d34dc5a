#!/bin/bash
# smoke.sh at Runloop, by SSH. Needs npm's @runloop/rl-cli, ssh, openssl and RUNLOOP_API_KEY; BLUEPRINT
# is a blueprint of Dockerfile: doc/platforms/runloop.md. Not tried.
# shellcheck disable=SC1091,SC2154 # lib.sh
set -euo pipefail
id=
remove() { [ -z "$id" ] || rli devbox shutdown "$id"; }
. "$(dirname "$0")/lib.sh"
needs rli ssh openssl RUNLOOP_API_KEY= BLUEPRINT=
id=$(rli devbox create --name "$name" --blueprint "$BLUEPRINT" --root --idle-time 1800 --idle-action shutdown -o text | tail -1)
rli devbox ssh "$id" --config-only >"$dir/ssh_config"
# The key that rli writes is the only way in; the host key is kept for the rest of the run.
sed -i "s|StrictHostKeyChecking no|StrictHostKeyChecking accept-new|; \$a\\  UserKnownHostsFile $dir/known_hosts" "$dir/ssh_config"
"$here/smoke.sh" exec "exec:ssh -F $dir/ssh_config -T -o BatchMode=yes $id sh"
