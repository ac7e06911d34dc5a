#!/bin/bash
# Run ordinary commands natively and in a session under agent-sandbox, and compare the
# exit status, the standard output and the files that they leave.
#
#   run.sh [STACK ...]    default: all
#
# USERS  root user (default: both): whose sessions; a user's is that of uid 1000
#
# rows.tsv has a row for each command: stack, name, command, and the reason where the
# results differ. A row with a reason that does not differ fails too.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
[ "$(id -u)" = 0 ] || { echo "ordinary: needs root, to become the users of sessions" >&2; exit 2; }
[ -x "$root/bin/agentsh" ] || { echo "ordinary: no $root/bin/agentsh: run 'make build'" >&2; exit 2; }
work=$(mktemp -d /var/tmp/agentsh-ordinary.XXXXXX)
trap 'rm -rf "$work"' EXIT
path=/usr/local/go/bin:/usr/local/bin:/usr/bin:/bin
cp "$root/bin/agentsh" "$work/" && cp -r "$root/packaging/policies" "$work/"
echo 'version: 1' >"$work/config.yaml"
chmod 755 "$work" && chmod -R a+rX "$work"
"$here/prepare.sh" "$work/fixture" "$work/policies"

become() { setpriv --reuid "$1" --regid "$1" --clear-groups "${@:2}"; }

natively() {
	(cd "$2" && become "$1" env -i PATH=$path HOME="$3" LANG=C.UTF-8 timeout 300 bash -c "$4")
}

in_session() {
	local start=() policy=(--config "$work/config.yaml" -p "$work/policies/agent-sandbox.yaml")
	[ ! -e "$3/.config/agentsh/policy.yaml" ] || policy=() # it is found
	# A distribution lets everybody open the device of FUSE.
	# shellcheck disable=SC2016 # the inner shell expands
	[ "$1" = 0 ] || start=(unshare -m sh -c 'mount -t tmpfs none /mnt && mknod -m 666 /mnt/fuse c 10 229 && mount --bind /mnt/fuse /dev/fuse &&
		umount -l /mnt && exec setpriv --reuid 1000 --regid 1000 --clear-groups "$@"' sh)
	(cd "$2" && env -i PATH=$path HOME="$3" LANG=C.UTF-8 XDG_STATE_HOME="$3" "${start[@]}" timeout 300 "$work/agentsh" exec \
		"${policy[@]}" --workspace "$2" -- bash -c "$4")
}

# result prints what a run left in the directory $1: its output, status and files. Git's
# own files hold times.
result() {
	sed "s|$1/project|PROJECT|g" "$1/out"
	echo "status $(cat "$1/status")"
	(cd "$1/project" && find . -name .git -prune -o -type f -printf '%M ' -exec sha256sum {} \; -o -printf '%M %p %l\n' | sort -k 3)
}

# run_row RUNNER UID OWNER ROW_DIRECTORY STACK COMMAND
run_row() {
	local status=0
	mkdir -p "$4/home"
	[ ! -d "$work/fixture/$5.home" ] || cp -a "$work/fixture/$5.home/." "$4/home"
	cp -a "$work/fixture/$5" "$4/project"
	chown -R "$3:$3" "$4"
	"$1" "$2" "$4/project" "$4/home" "$6" >"$4/out" 2>"$4/err" </dev/null || status=$?
	echo "$status" >"$4/status"
	result "$4" >"$4/result"
}

failed=0 count=0
for user in ${USERS:-root user}; do
	uid=0
	[ "$user" = root ] || uid=1000
	while IFS=$'\t' read -r stack name command reason <&3; do
		[[ $stack != '#'* ]] || continue
		[[ $# = 0 || " $* " = *" $stack "* ]] || continue
		count=$((count + 1)) row=$work/row
		run_row natively "$uid" "$uid" "$row/native" "$stack" "$command"
		run_row in_session "$uid" "$uid" "$row/session" "$stack" "$command"
		if [ "$(cat "$row/native/status")" = 127 ]; then
			failed=$((failed + 1))
			echo "FAIL $user $stack: $name: a program is missing: $(cat "$row/native/err"): run 'packaging/deps.sh ordinary'"
		elif diff -u "$row/native/result" "$row/session/result" >"$row/diff"; then
			if [ -z "$reason" ] && grep '^agentsh: denied' "$row/session/err" >"$row/denied"; then
				failed=$((failed + 1))
				echo "FAIL $user $stack: $name: something is denied that the command does not need"
				sed 's/^/  /' "$row/denied"
			fi
			[ -z "$reason" ] || { failed=$((failed + 1)) && echo "FAIL $user $stack: $name: no difference: remove the reason from rows.tsv"; }
		elif [ -z "$reason" ]; then
			failed=$((failed + 1))
			echo "FAIL $user $stack: $name: $command"
			cat "$row/diff"
			sed 's/^/  native: /' "$row/native/err"
			sed 's/^/  session: /' "$row/session/err"
		fi
		rm -rf "$row"
	done 3<"$here/rows.tsv"
done
echo "ordinary: $count rows, $failed failed"
[ "$count" -gt 0 ] && [ "$failed" = 0 ]
