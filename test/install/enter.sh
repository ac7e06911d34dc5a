# shellcheck shell=dash
# Runs in a mount and pid namespace of its own, by busybox: makes a directory the
# root, as a container runtime does, and runs a command there.
#   enter.sh ROOT COMMAND [ARG ...]
set -eu
root=$1
shift
mount --bind "$root" "$root"
cd "$root"
mkdir -p proc sys dev run tmp work
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
cp /bin/busybox run/busybox
pivot_root . .
/run/busybox umount -l .
cd /work
# By its path: busybox would take many a name for one of its own.
program=$1
shift
case $program in
*/*) ;;
*)
	for dir in /usr/local/bin /usr/sbin /usr/bin /sbin /bin; do
		if [ -x "$dir/$program" ]; then
			program=$dir/$program
			break
		fi
	done
	;;
esac
# This is process 1 here: it waits, so that what the command leaves ends with it.
/run/busybox env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 "$program" "$@" </dev/null
