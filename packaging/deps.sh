#!/bin/sh
# Install the Debian packages that a set of make targets needs: build, check, packages, bench,
# places, places-examples, places-arm64, browser, coherence, learn, ordinary, prometheus, services, suites.
# Does nothing, and needs no network, when they are all there.
set -eu

missing=
native=$(dpkg --print-architecture)
# A name without an architecture is this machine's: libseccomp-dev:arm64 alone is not libseccomp-dev.
want() {
	case $1 in *:*) arch=${1#*:} ;; *) arch=$native ;; esac
	dpkg-query -W -f='${Architecture} ${db:Status-Status}\n' "$1" 2>/dev/null |
		grep -qxE "($arch|all) installed" || missing="$missing $1"
}

# A program may come from elsewhere than a package.
tool() {
	command -v "$1" >/dev/null || want "$2"
}

for set in "$@"; do
	case $set in
	build)
		for p in gcc libc6-dev pkg-config libseccomp-dev git ca-certificates curl; do want "$p"; done
		tool go golang-go # any: packaging/go.sh has it fetch that of go.mod
		;;
	check)
		for p in bash dash busybox-static make mount procps python3-venv shellcheck gcc-aarch64-linux-gnu libc6-dev-arm64-cross libseccomp-dev:arm64 qemu-user-static; do want "$p"; done
		tool jq jq
		tool git-lfs git-lfs
		tool strace strace
		tool gdb gdb-minimal
		tool inotifywait inotify-tools
		tool nginx nginx-light
		tool python3 python3
		tool node nodejs
		tool npm npm
		tool ruby ruby
		tool zsh zsh
		tool vim vim
		tool patch patch
		tool ssh openssh-client
		tool sshd openssh-server
		tool rsync rsync
		;;
	packages) for p in mmdebstrap rpm pacman-package-manager zstd musl musl-tools busybox-static qemu-user-static systemd man-db; do want "$p"; done ;;
	bench)
		want bubblewrap
		tool sqlite3 sqlite3
		;;
	places)
		for p in mmdebstrap gcc libc6-dev musl busybox-static qemu-system-x86 docker.io podman runc uidmap slirp4netns iptables nftables cpio kmod e2fsprogs xz-utils zstd util-linux iproute2 debian-archive-keyring; do want "$p"; done
		;;
	places-examples)
		want docker-compose
		tool npm npm
		;;
	places-arm64) want qemu-system-arm ;;
	coherence) tool cargo cargo ;;
	learn)
		for p in rustc cargo; do want "$p"; done # sessions of these tests see no ~/.cargo
		tool javac default-jdk-headless
		;;
	ordinary)
		for p in rustc cargo; do want "$p"; done # sessions see no ~/.cargo
		for p in make gcc python3 python3-venv rsync patch jq shellcheck sqlite3 ruby rake bundler ruby-minitest cmake curl; do want "$p"; done
		tool node nodejs
		tool npm npm
		tool javac default-jdk-headless
		tool mvn maven
		;;
	prometheus) want prometheus ;;
	services) for p in postgresql redis-server redis-tools; do want "$p"; done ;;
	browser)
		tool chromium chromium
		want fonts-dejavu-core
		;;
	suites)
		for p in bubblewrap make perl python3 python3-dev zlib1g-dev stress-ng redis-server redis-tools libpcre2-8-0 postgresql curl procps util-linux; do want "$p"; done
		want "libpython$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || echo 3)-testsuite"
		tool chromium chromium
		;;
	*)
		echo "deps.sh: unknown set $set: use build, check, packages, bench, places, places-examples, places-arm64, browser, coherence, learn, ordinary, prometheus, services or suites" >&2
		exit 2
		;;
	esac
done
[ -n "$missing" ] || exit 0

sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
case $missing in
*:arm64*) $sudo dpkg --add-architecture arm64 ;;
esac
echo "installing:$missing" >&2
# The lists' lock has no timeout of its own in apt: another apt, such as that of a machine that has
# just started, is waited for here.
waits=0
until said=$(LC_ALL=C $sudo apt-get -qq update 2>&1); do
	case $said in
	*"Could not get lock"*)
		[ $waits != 0 ] || echo "deps.sh: another apt-get is running: waiting for its end" >&2
		[ $((waits += 1)) -gt 900 ] || { sleep 1; continue; }
		;;
	esac
	echo "$said" >&2
	echo "deps.sh: the list of packages could not be read: mend what apt-get says, or install:$missing" >&2
	exit 1
done
# shellcheck disable=SC2086 # a list of package names
DEBIAN_FRONTEND=noninteractive $sudo apt-get -qq -o DPkg::Lock::Timeout=900 install -y --no-install-recommends $missing >&2
