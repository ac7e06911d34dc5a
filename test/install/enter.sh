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
# This is process 1 here: it waits, so that what the command leaves ends with it.
/run/busybox env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 "$@" </dev/null
