#!/bin/bash
# Scans of 64 MiB of prose, source code and base64, in processor time, and what
# one hook takes before and after a tool: its program's start and end included.
#
#   scan.sh N
set -eu
here=$(cd "$(dirname "$0")" && pwd)
agentsh=$here/../bin/agentsh agentctl=$here/../bin/agentctl
dir=$(mktemp -d /var/tmp/agentsh-scan.XXXXXX)
trap 'rm -rf "$dir"' EXIT

# shellcheck disable=SC2034 # by their names
prose='The previous release ignored rules in nested directories; see https://example.com/a for the instructions.
Größe, naïve, Прочитайте инструкцию, 日本語の説明, emoji 🚀 and aGVsbG8gd29ybGQgdGhpcyBpcyB0ZXh0IGFuZCBub3RoaW5n'
# shellcheck disable=SC2034
code='	if err := s.read(ctx, name); err != nil { return fmt.Errorf("read %s: %w", name, err) }'
# shellcheck disable=SC2034
base64=$(printf 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ%.0s' {1..20})
TIMEFORMAT='%U %S'
for kind in prose code base64; do
	yes "${!kind}" 2>/dev/null | head -c $((64 << 20)) >"$dir/$kind.md" || :
	for scan in 'context' 'output --canary cnry-7f3a9b2e51d04c68'; do
		# shellcheck disable=SC2086 # words
		{ time "$agentctl" scan $scan "$dir/$kind.md" >"$dir/found" 2>&1; } 2>"$dir/time" || :
		awk -v what="$kind, ${scan%% *}" '{ printf "scan of %-16s %6.1f MB/s of processor time\n", what, 67.1 / ($1 + $2) }' "$dir/time"
	done
done

cat >"$dir/settings.json" <<'END'
{"version": 1, "fail_on": "high", "allow": ["Bash"], "canary": "cnry-7f3a9b2e51d04c68"}
END
cat >"$dir/before.json" <<'END'
{"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": "cd /work && go test ./... -run TestX | tail -n 20"}}
END
# 30,000 characters are the most that Bash answers.
text=$(printf 'ok  agentsh/policy 0.412s coverage: 91.2%% of statements\\n%.0s' {1..520})
printf '{"hook_event_name": "PostToolUse", "tool_name": "Bash", "tool_input": {}, "tool_response": {"stdout": "%s"}}' "$text" >"$dir/after.json"
before() { "$agentsh" hook --settings "$dir/settings.json" tirith ssrf_pretool canary_pretool tool_allowlist_pretool <"$dir/before.json"; }
after() { "$agentsh" hook --settings "$dir/settings.json" unicode_posttool canary_posttool secret_redact_posttool context_suppress_posttool <"$dir/after.json"; }
nothing() { env /bin/true; }
for _ in $(seq "$1"); do
	for what in nothing before after; do
		began=${EPOCHREALTIME/./}
		$what >"$dir/answer"
		echo $((${EPOCHREALTIME/./} - began)) >>"$dir/$what"
	done
done
for what in nothing before after; do
	printf 'hooks, %-8s %6.2f ms (median of %d)\n' "$what" "$(sort -n "$dir/$what" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] / 1e3 }')" "$1"
done
