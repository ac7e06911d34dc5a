#!/bin/bash
# Run the tests of the backend kubernetes in a cluster of this machine: run.sh PROGRAMS [NAME]. PROGRAMS is
# what build.sh made, NAME selects tests as go test -run does. Needs root.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
work=$(mktemp -d /var/tmp/agentsh-cluster.XXXXXX)
trap 'rm -rf "$work" 2>/dev/null || true' EXIT

go=${GO:-go}
(cd "$root/test/kubernetes" && "$go" test -c -o "$work/kubernetes.test" .)
export CLUSTER_AGENTSH=$root/bin/agentsh CLUSTER_AGENTCTL=$root/bin/agentctl CLUSTER_ROOT=$root
export AGENTSH_TEST_STRICT=1 AGENTSH_CLUSTER=1 AGENTSH_PROGRAMS=$root/bin
cd "$root/test/kubernetes"
"$here/with.sh" "$1" "$work/cluster" "$work/kubernetes.test" -test.v -test.timeout 45m -test.run "${2:-TestCluster}"
