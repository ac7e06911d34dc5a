#!/bin/bash
# What the corpus of bypasses needs in a pod: evasions.sh DIRECTORY. EVASIONS is the corpus. The
# programs of the probes are built on this machine.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
here=$root/test/places
# shellcheck disable=SC2034 # of common.sh
corpus=$(cd "${EVASIONS:-$root/../shared/evasions}" && pwd)
# shellcheck source=test/places/common.sh disable=SC1091
. "$here/common.sh"
wants_probes() { :; }
bundle "$1"
with_probes "$1" cluster
cat >"$1/pod.sh" <<'POD'
# Runs in the pod. A container runtime gives pods no control group of their own to write to.
set -u
export RACE_N=$(cat /places/tries) EVASIONS=/places/corpus PROBE_BIN_DIR=/places/built OWN=no
echo "degraded: $(/places/agentsh detect 2>/dev/null | sed -n 's/^A session opens here only with degraded: \[\([^]]*\)\].*/\1/p')"
run() { DEGRADED=$1 /places/repo/test/evasions/run.sh "${@:2}"; }
run '' command args shell file net signal kernel env control
run cgroup supervisor # its policy limits memory
POD
