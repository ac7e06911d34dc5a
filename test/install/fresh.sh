#!/bin/bash
# Run make targets on a fresh Debian: a root with make, git and apt, and nothing else.
#
#   fresh.sh SUITE TARGET ...      as in: fresh.sh bookworm demo
#
# The tree is a clone of this one. Packages come from the archive, the Go of go.mod from the
# module proxy. KEEP=1 leaves the root in /var/tmp.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
[ "$(id -u)" = 0 ] || { echo "fresh: needs root to make a root directory" >&2; exit 2; }
[ $# -gt 1 ] || { sed -n '2,/^set/p' "$0" | grep '^#' >&2; exit 2; }
suite=$1
shift
# shellcheck source=test/places/common.sh
. "$root/test/places/common.sh"
dir=$(mktemp -d /var/tmp/fresh.XXXXXX)
trap '[ -n "${KEEP:-}" ] || rm -rf --one-file-system "$dir"' EXIT
mmdebstrap --quiet --variant=apt --mode=root --include=make,git "$suite" "$dir" "$(mirror)"
if [ -e /etc/ssl/certs/ca-certificates.crt ]; then # that of a proxy, too
	cp /etc/ssl/certs/ca-certificates.crt "$dir/root/certificates.pem"
fi
cp /etc/resolv.conf /etc/hosts "$dir/etc/"
for settings in /etc/apt/apt.conf.d/*proxy*; do
	[ ! -e "$settings" ] || cp "$settings" "$dir/etc/apt/apt.conf.d/"
done
git clone -q --no-hardlinks "file://$root" "$dir/root/agentsh"
chmod 755 "$dir"
# shellcheck disable=SC2016 # $1 is the inner one
unshare -m bash -ec '
	mount --bind "$1" "$1"
	for name in proc sys dev; do mount --rbind "/$name" "$1/$name"; done
	mount -t tmpfs -o mode=1777 tmpfs "$1/tmp"
	mount -t tmpfs -o mode=755 tmpfs "$1/run"
	cd "$1"
	mkdir -p mnt
	pivot_root . mnt
	cd /root/agentsh
	/mnt/bin/busybox umount -l /mnt # static: the new root has no mount
	shift
	exec env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
		SSL_CERT_FILE=/root/certificates.pem ${GOPROXY:+GOPROXY="$GOPROXY"} ${HTTPS_PROXY:+HTTPS_PROXY="$HTTPS_PROXY"} make "$@"' fresh "$dir" "$@"
