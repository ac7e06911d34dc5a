#!/bin/bash
# All measurements, printed. What is compared runs in turn in the same run; every
# figure is a median.
#
#   run.sh [sizes|starts|first|shells|sandboxes|policy|supervisor|engines|network|files|places|controller|scan|runs|channel|remote ...]
#
# ROUNDS  rounds of each (5)
# PLACE   directory for the sandboxes section, about 3 GiB (a new one in /var/tmp)
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/.."
rounds=${ROUNDS:-5}
[ "$(id -u)" = 0 ] || { echo "bench: needs root" >&2; exit 2; }
[ $# -gt 0 ] || set -- sizes starts first shells policy supervisor engines network controller scan runs channel remote files places sandboxes

# go_bench PACKAGE PATTERN [TIME] prints each benchmark once, every figure the
# median of the rounds.
go_bench() {
	go test "$1" -run '^$' -bench "$2" -benchtime "${3:-0.3s}" -count "$rounds" -benchmem | awk '
		/^Benchmark/ {
			name = $1
			if (!(name in n)) order[++names] = name
			n[name]++
			for (i = 3; i < NF; i += 2) {
				if (!((name, $(i + 1)) in seen)) { seen[name, $(i + 1)] = 1; units[name] = units[name] " " $(i + 1) }
				value[name, $(i + 1), n[name]] = $i
			}
		}
		/FAIL|panic/ { print }
		function median(name, unit,   i, j, t, v) {
			for (i = 1; i <= n[name]; i++) v[i] = value[name, unit, i] + 0
			for (i = 2; i <= n[name]; i++) for (j = i; j > 1 && v[j - 1] > v[j]; j--) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t }
			return v[int((n[name] + 1) / 2)]
		}
		END {
			for (i = 1; i <= names; i++) {
				line = sprintf("%-44s", order[i])
				m = split(units[order[i]], u, " ")
				for (j = 1; j <= m; j++) line = line sprintf("  %g %s", median(order[i], u[j]), u[j])
				print line
			}
		}'
}

load() { cut -d' ' -f1-3 /proc/loadavg; }

for section; do
	echo "== $section (load $(load))"
	case $section in
	sizes) stat -c '%n %s bytes' bin/agentsh bin/agentctl ;;
	starts) bench/starts.sh $((rounds * 6)) ;;
	first) bench/first.sh "$rounds" ;;
	shells) bench/shells.sh $((rounds * 20)) ;;
	policy)
		go_bench ./policy 'Load|Evaluate'
		go_bench ./policy/env Build
		bench/policy.sh "$rounds"
		;;
	supervisor)
		go_bench ./supervisor/notify NestedExec 5x
		go_bench ./supervisor/launch . 100x
		go_bench ./supervisor/audit Append
		go_bench ./supervisor Flood 1x
		bench/kill.py bin/agentsh examples/policies/demo.yaml "$((4 * rounds))" | tail -n 1
		;;
	engines) # listener and trace, against no supervision
		go_bench ./supervisor/notify Engines 5x
		go_bench ./supervisor/notify SpawnBesideIdle 1x
		;;
	network)
		go_bench ./supervisor/egress Throughput 11x
		go_bench ./supervisor/egress Latency 300x
		go_bench ./supervisor/egress Memory 1x
		;;
	controller)
		go_bench ./controller/harness Hundred
		;;
	scan) bench/scan.sh "$rounds" ;;
	runs)
		go_bench ./cmd/agentctl Run 3x
		go_bench ./cmd/agentctl ChangeRecord 1x
		;;
	channel) go_bench ./internal/channel . ;;
	remote) bench/remote.sh "$rounds" ;;
	files)
		go_bench ./fuse Mount "${rounds}x"
		go_bench ./fuse Overwrite "${rounds}x"
		;;
	places) bench/files.sh "$rounds" ;;
	sandboxes)
		place=${PLACE:-$(mktemp -d /var/tmp/agentsh-bench.XXXXXX)}
		bench/sandboxes.sh "$place/work" "$rounds" spawn find du status grep read write pwrite create build
		[ -n "${PLACE:-}" ] || rm -rf "$place"
		;;
	*) echo "bench: no section $section" >&2; exit 2 ;;
	esac
done
