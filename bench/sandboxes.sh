#!/bin/bash
# Each workload natively, under bubblewrap and under agentsh, in turn, and the
# medians of the rounds with their ratios to native.
#
#   sandboxes.sh DIR ROUNDS NAME ...
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
agentsh=$here/../bin/agentsh policies=$here/../packaging/policies
dir=$(readlink -f "$1") rounds=$2
shift 2
[ -d "$dir/repo" ] || "$here/prepare.sh" "$dir"
results=$dir.results
: >"$results"
logs=$(mktemp -d /var/tmp/agentsh-logs.XXXXXX)
trap 'rm -rf "$logs"' EXIT

# bubblewrap without file policy: the same namespaces, everything bound as it is.
bubblewrap() { bwrap --dev-bind / / --unshare-all --proc /proc --die-with-parent --chdir "$dir" -- "$@"; }
supervised() {
	local policy=$1
	shift
	"$agentsh" exec -p "$policies/$policy.yaml" -w "$dir" --cwd "$dir" --audit "$logs/audit" -- "$@"
}

under() {
	case $1 in
	native) (cd "$dir" && ./workload.sh "$2") ;;
	bubblewrap) bubblewrap ./workload.sh "$2" ;;
	*) supervised "$1" ./workload.sh "$2" ;;
	esac | sed "s/^/$1 /" >>"$results"
}

# Each round begins with another one: what comes first pays for what the disk
# still has to do.
order=(native bubblewrap default agent-sandbox)
for _ in $(seq "$rounds"); do
	for name; do
		for who in "${order[@]}"; do under "$who" "$name"; done
	done
	order=("${order[@]:1}" "${order[0]}")
done

printf '%-10s %12s %12s %20s %20s   (ms, medians of %d, ratio to native)\n' workload native bubblewrap "agentsh default" "agentsh agent-sandbox" "$rounds"
for name; do
	sort -k3 -n "$results" | awk -v name="$name" '
		$2 == name { v[$1, ++n[$1]] = $3 / 1e6 }
		function median(who) { return v[who, int((n[who] + 1) / 2)] }
		function show(who) { return sprintf("%.2f (%.2fx)", median(who), median(who) / median("native")) }
		END { printf "%-10s %12.2f %20s %20s %20s\n", name, median("native"), show("bubblewrap"), show("default"), show("agent-sandbox") }'
done
