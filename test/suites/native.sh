#!/bin/bash
# Run a command as a session would, without agentsh: the same user, no privilege,
# namespaces of its own with loopback only, the same directories. bubblewrap makes them.
#
#   native.sh UID DIR COMMAND ...      DIR can be written; NAME=VALUE words for env(1) may come first
#
# A session of root's runs in the user namespace of the machine, one of a user's in its own.
set -eu
uid=$1 dir=$2
shift 2
ulimit -c 0 # a session dumps no core
for fd in "/proc/$$/fd"/*; do # and has no file of whoever starts it; 255 is this script
	case ${fd##*/} in 0 | 1 | 2 | 255) ;; *) eval "exec ${fd##*/}>&-" ;; esac
done
files=$(mktemp -d /var/tmp/suites-native.XXXXXX)
trap 'rm -rf "$files"' EXIT
chmod 755 "$files"
{ grep -v "^[^:]*:[^:]*:$uid:" /etc/passwd; echo "sandbox:x:$uid:$uid::/home/sandbox:/bin/bash"; } >"$files/passwd"
{ grep -v "^[^:]*:[^:]*:$uid:" /etc/group; echo "sandbox:x:$uid:"; } >"$files/group"
view=(--die-with-parent --unshare-pid --unshare-net --unshare-ipc --unshare-uts
	--ro-bind /usr /usr --ro-bind /etc /etc --ro-bind-try /opt /opt --ro-bind "$files/passwd" /etc/passwd --ro-bind "$files/group" /etc/group
	--symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 --symlink usr/sbin /sbin
	--proc /proc --dev /dev --ro-bind /sys /sys --tmpfs /tmp --tmpfs /var/tmp --tmpfs /home/sandbox --perms 0755 --dir "$(dirname "$dir")" --bind "$dir" "$dir" --chdir "$dir" --clearenv)
words=(env USER=sandbox SHLVL=1 HOME=/home/sandbox TMPDIR=/tmp TERM=dumb LANG=C.UTF-8 SHELL=/bin/bash
	PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/go/bin "$@")
# shellcheck disable=SC2016 # the inner shell expands
if [ "$uid" = 60700 ]; then
	bwrap "${view[@]}" sh -c 'chown "$0:$0" /tmp /var/tmp /home/sandbox && chmod 1777 /tmp /var/tmp /dev/shm && chmod 700 /home/sandbox &&
		exec setpriv --reuid "$0" --regid "$0" --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all "$@"' "$uid" "${words[@]}"
else
	setpriv --reuid "$uid" --regid "$uid" --clear-groups bwrap "${view[@]}" --unshare-user sh -c 'chmod 1777 /tmp /var/tmp /dev/shm; exec "$@"' sh "${words[@]}"
fi
