#!/bin/bash
# The file workloads natively and in a session, in turn: on tmpfs and on ext4, by
# root and by an ordinary user (whose file server reads and writes everything
# itself), warm and cold. Prints a line of medians and ratios for each.
#
#   files.sh ROUNDS [tmpfs|ext4 ...]      default: both
#
# NAMES   the workloads (find du status grep read write pwrite create build)
# WHO     by whom (root user)
# STATES  warm, cold (warm cold): cold is the first use in a new session, on ext4
#         with nothing of it in memory
# POLICY  a shipped policy (default)
# AGENTSH the program (bin/agentsh)
#
# tmpfs takes 4 GiB of memory for a while, ext4 an image in /var/tmp of as much.
set -euo pipefail
[ -n "${APART:-}" ] || exec env APART=1 unshare -m -- "$0" "$@" # its mounts are nobody else's, and go with it
here=$(cd "$(dirname "$0")" && pwd)
agentsh=${AGENTSH:-$here/../bin/agentsh} policy=$here/../packaging/policies/${POLICY:-default}.yaml
rounds=$1
shift
[ $# -gt 0 ] || set -- tmpfs ext4
names=${NAMES:-find du status grep read write pwrite create build}
user=1000

base=$(mktemp -d /var/tmp/agentsh-files.XXXXXX)
chmod 755 "$base"
results=$base/results
trap 'umount -l "$base/place" 2>/dev/null || :; umount /dev/fuse || :; rm -rf "$base"' EXIT

# The user may not open the device everywhere.
mknod -m 666 "$base/fuse" c 10 229
mount --bind "$base/fuse" /dev/fuse

# place FS makes an empty filesystem.
place() {
	mkdir -p "$base/place"
	case $1 in
	tmpfs) mount -t tmpfs -o size=4G,mode=755 tmpfs "$base/place" ;;
	ext4)
		truncate -s 4G "$base/image"
		mkfs.ext4 -q -F "$base/image"
		mount -o loop "$base/image" "$base/place"
		;;
	*) echo "files: no filesystem $1" >&2; return 2 ;;
	esac
	"$here/prepare.sh" "$base/place/work"
}

as() {
	if [ "$1" = root ]; then shift; "$@"; return; fi
	shift
	setpriv --reuid $user --regid $user --clear-groups -- env HOME="$base/place/work/home" "$@"
}

# run HOW WHO STATE NAME adds what one run took to the results.
run() {
	local dir=$base/place/work inside=(./workload.sh "$4")
	[ "$3" = warm ] || { inside=(env COLD=1 "${inside[@]}"); sync -f "$dir"; echo 3 >/proc/sys/vm/drop_caches; }
	if [ "$1" = native ]; then
		(cd "$dir" && as "$2" "${inside[@]}")
	else
		as "$2" "$agentsh" exec -p "$policy" -w "$dir" --cwd "$dir" --audit "$base/audit.$fs.$2/a" -- "${inside[@]}"
	fi | sed "s/^/$1 $2 $3 /" >>"$results"
}

# show FS WHO STATE NAME prints one line.
show() {
	sort -k5 -n "$results" | awk -v fs="$1" -v who="$2" -v state="$3" -v name="$4" '
		$2 == who && $3 == state && $4 == name { v[$1, ++n[$1]] = $5 / 1e6 }
		function median(how) { return v[how, int((n[how] + 1) / 2)] }
		END { printf "%-6s %-5s %-5s %-8s %10.2f %10.2f %7.2fx\n", fs, who, state, name, median("native"), median("session"), median("session") / median("native") }'
}

printf '%-6s %-5s %-5s %-8s %10s %10s %8s   (medians of %d rounds, load %s)\n' on by state workload "native ms" "session" ratio "$rounds" "$(cut -d' ' -f1 /proc/loadavg)"
for fs; do
	place "$fs"
	for who in ${WHO:-root user}; do
		: >"$results"
		mkdir -p "$base/audit.$fs.$who"
		if [ "$who" = user ]; then chown -R $user:$user "$base/place/work" "$base/audit.$fs.$who"; fi
		order=(native session)
		for _ in $(seq "$rounds"); do
			for state in ${STATES:-warm cold}; do
				for name in $names; do
					case $state:$name in cold:write | cold:pwrite | cold:create) continue ;; esac
					for how in "${order[@]}"; do run "$how" "$who" "$state" "$name"; done
				done
			done
			order=("${order[@]:1}" "${order[0]}")
		done
		for state in ${STATES:-warm cold}; do
			for name in $names; do
				case $state:$name in cold:write | cold:pwrite | cold:create) continue ;; esac
				show "$fs" "$who" "$state" "$name"
			done
		done
	done
	umount -l "$base/place" # the last session may still end
	rm -f "$base/image"
done
