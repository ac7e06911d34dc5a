#!/bin/bash
# What a spawn of /bin/true costs below a command in gVisor, beside the same without agentsh, in turn:
# promised is 2 times. Needs root, gcc, gVisor's runsc and an idle machine.
#
#   gvisor.sh RUNSC [ROUNDS]     RUNSC is what 'make places PLACES=gvisor' builds in .tools; ROUNDS is 5
#
# Prints the median of 300 spawns of each, in milliseconds.
set -euo pipefail
cd "$(dirname "$0")/.."
runsc=${1:?} rounds=${2:-5}
work=$(mktemp -d /var/tmp/gvisor-bench.XXXXXX)
trap 'umount "$work/runsc/null-netns" 2>/dev/null; rm -rf --one-file-system "$work"' EXIT
mkdir -p "$work"/{bundle,runsc,files,root/{proc,tmp,dev,sys,files,usr,bin,lib,lib64,etc}}
gcc -O2 -static -o "$work/files/spawns" bench/spawns.c
cp bin/agentsh "$work/files/"
cat >"$work/files/policy.yaml" <<-'YAML'
	version: 1
	name: all
	command_rules: [{name: all, commands: ['*'], decision: allow}]
	file_rules:
	  - {name: workspace, paths: ['${WORKSPACE}', '${WORKSPACE}/**'], operations: ['*'], decision: allow}
	  - {name: others, paths: ['/**'], operations: [read, list, stat, execute], decision: allow}
YAML
cat >"$work/files/run.sh" <<-SH
	mkdir /tmp/workspace && chown 60700:60700 /tmp/workspace && cd /tmp/workspace || exit
	export HOME=/tmp XDG_STATE_HOME=/tmp/state
	for round in \$(seq $rounds); do
		echo "without \$(/files/spawns 300 /usr/bin/true)"
		echo "agentsh \$(/files/agentsh exec -p /files/policy.yaml --degraded any -- /files/spawns 300 /usr/bin/true)"
	done
SH
mounts=
for dir in usr bin lib lib64 etc files; do
	from=/$dir
	[ $dir != files ] || from=$work/files
	[ ! -e "$from" ] || mounts+='{"destination": "/'$dir'", "type": "bind", "source": "'$from'", "options": ["ro", "rbind"]},'
done
held='["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP",
	"CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SYS_CHROOT", "CAP_MKNOD", "CAP_AUDIT_WRITE", "CAP_SETFCAP"]'
cat >"$work/bundle/config.json" <<-JSON
	{"ociVersion": "1.0.0", "hostname": "bench", "root": {"path": "$work/root", "readonly": false},
	 "process": {"user": {"uid": 0, "gid": 0}, "cwd": "/", "args": ["bash", "/files/run.sh"], "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
	  "capabilities": {"bounding": $held, "effective": $held, "permitted": $held}},
	 "mounts": [$mounts {"destination": "/proc", "type": "proc"}, {"destination": "/tmp", "type": "tmpfs"},
	  {"destination": "/dev", "type": "tmpfs"}, {"destination": "/sys", "type": "sysfs"}],
	 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "network"}]}}
JSON
"$runsc" --root="$work/runsc" --platform=systrap --network=none --ignore-cgroups --overlay2=root:memory run --bundle "$work/bundle" "bench$$" </dev/null
