#!/bin/bash
# Runs in gVisor as root: the run of examples/fix-bug/gvisor.yaml, as doc/platforms/gvisor.md says. /places has
# the tree, the programs, and the configuration and the command of the page.
export HOME=/root PATH=$PATH:/usr/local/go/bin LC_ALL=C.UTF-8
mkdir -p /work /etc/agentsh /usr/lib/agentsh /usr/local/lib /etc/agentsh/policies
tar -xzf /places/tree.tar.gz -C /work
cd /work || exit 2
cp /places/agentsh /places/agentctl /usr/bin/
cp /places/unmapped.so /usr/local/lib/
cp /places/config.yaml /etc/agentsh/
cp packaging/policies/*.yaml /etc/agentsh/policies/
cp bash_startup.sh /usr/lib/agentsh/
git config --global user.name Places
git config --global user.email places@example.org
examples/fix-bug/prepare.sh

say() { printf '%s\t%s\n' "$1" "$2"; }

# field prints a value of result.json.
field() { tr -d '\n' <out/fix-bug/result.json | sed -n "s/.*\"$1\": *\(\[[^]]*\]\|\"[^\"]*\"\).*/\1/p" | tr -d ' "'; }

say "without the words" "$(sed '/^degraded:/d' examples/fix-bug/gvisor.yaml >examples/fix-bug/strict.yaml
	echo 'version: 1' >/etc/agentsh/config.yaml
	agentctl run examples/fix-bug/strict.yaml --repo examples/fix-bug/repo --out out/strict >/tmp/strict 2>&1 && echo ran
	grep -o 'degraded: \[[a-z_]*\]' /tmp/strict | sort -u | tr '\n' ' ')"
cat /tmp/strict >&2
cp /places/config.yaml /etc/agentsh/
eval "$(cat /places/command)" >/tmp/demo 2>&1
say "the command of the page" "exit $?"
cat /tmp/demo out/fix-bug/agent.log >&2
say "the agent" "$(sed -n 's/^\(refused [0-9]*, not refused [0-9]*\)$/\1/p' out/fix-bug/agent.log)"
say "engine" "$(field engine)"
say "degraded" "$(field degraded)"
say "commits" "$(git -C examples/fix-bug/repo log --all --format=%s | grep -c '^Merge: join slots that touch')"
say "the audit log" "$(agentsh audit verify out/fix-bug/audit.jsonl >/dev/null 2>&1; echo "exit $?")"
