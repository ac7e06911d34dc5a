#!/bin/bash
# End the run of launch-vm.sh in a directory, and its machine.
set -u
run=$(cat "$1/run" 2>/dev/null) || exit 0
export XDG_STATE_HOME=$1/state
agentctl=${EV_ROOT:?}/bin/agentctl
"$agentctl" sandbox delete --force latest >/dev/null 2>&1
kill "$run" 2>/dev/null
timeout 60 tail --pid "$run" -f /dev/null
"$agentctl" gc >/dev/null 2>&1
rm -f "$1/run"
