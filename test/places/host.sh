# shellcheck shell=bash disable=SC2154
# Places on this kernel that need no container engine. Sourced by run.sh.

# A root with busybox and musl and no glibc.
place_musl() {
	local dir=$work/musl name
	mkdir -p "$dir"/{bin,lib,etc,tmp,var/tmp,root,proc,dev,sys,run,usr/bin,sbin,lib64}
	cp "$(command -v busybox)" "$dir/bin/busybox"
	cp /lib/ld-musl-*.so.1 "$dir/lib/"
	for name in $("$dir/bin/busybox" --list); do
		[ "$name" = busybox ] || ln -s busybox "$dir/bin/$name"
	done
	echo root:x:0:0::/root:/bin/sh >"$dir/etc/passwd"
	echo root:x:0: >"$dir/etc/group"
	: >"$dir/etc/shadow"
	bundle "$dir/places"
	mkdir "$dir/mnt"
	# shellcheck disable=SC2016 # $1 is the inner one
	unshare -m bash -ec '
		mount --bind "$1" "$1"
		mount -t proc proc "$1/proc"
		mount --rbind /dev "$1/dev"
		mount -t tmpfs tmpfs "$1/tmp"
		mount --rbind /sys "$1/sys"
		cd "$1"
		pivot_root . mnt
		exec /bin/sh -c "cd /; mount --make-rprivate /; umount -l /mnt; sh /places/check.sh /places"' musl "$dir"
}

# This machine with one thing taken away. The checks run in a root of their own
# kind, so that they find the same programs everywhere.
inside_debian() {
	local setup=$1
	shift
	local dir
	dir=$(debian_root)
	bundle "$work/places"
	with_probes "$work/places" no-fuse
	# shellcheck disable=SC2016 # $1 is the inner one
	unshare -m bash -ec '
		mount --bind "$1" "$1"
		mount --bind "$2" "$1/places"
		mount -t tmpfs -o mode=1777 tmpfs "$1/tmp"
		mount -t tmpfs -o mode=1777 tmpfs "$1/var/tmp"
		mount -t tmpfs -o mode=755 tmpfs "$1/run"
		mount -t proc proc "$1/proc"
		mount --rbind /sys "$1/sys"
		mount --rbind /dev "$1/dev"
		cd "$1"
		pivot_root . mnt
		cd /
		mount --make-rprivate /
		umount -l /mnt
		eval "$3"
		shift 3
		"$@" sh /places/check.sh /places
		[ ! -e /places/probes.sh ] || "$@" bash /places/probes.sh' place "$dir" "$work/places" "$setup" "$@"
}

place_no_fuse() { inside_debian 'mount --bind /dev/null /dev/fuse' env; }

# A user where user namespaces are off: root of a user namespace turns them off
# for what is in it.
place_no_userns() {
	local taken=$CACHE/without
	[ -x "$taken" ] || gcc -O2 -Wall -o "$taken" "$here/without.c"
	bundle "$work/places"
	cp "$taken" "$work/places/without"
	inside_debian ':' setpriv --reuid 1000 --regid 1000 --clear-groups /places/without
}
