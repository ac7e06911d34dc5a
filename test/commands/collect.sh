#!/bin/bash
# Copies shell scripts of Debian packages below DIR, one file each: those of the
# installed packages, and those of a few further packages that apt downloads.
#
#   collect.sh DIR [PACKAGE ...]
set -euo pipefail
to=$1
shift
mkdir -p "$to"
to=$(cd "$to" && pwd)

# scripts DIR ... prints the shell scripts below directories, each with a NUL.
scripts() {
	find "$@" -xdev -type f -size -256k -print0 2>/dev/null |
		xargs -0 -r -n 200 awk 'FNR > 1 { nextfile } /^#! ?\/(usr\/)?bin\/(env )?(ba|da)?sh( |$)/ { printf "%s%c", FILENAME, 0 }' 2>/dev/null || :
}

# copy FROM PREFIX copies the scripts below a directory, named by their paths.
copy() {
	while IFS= read -r -d '' file; do
		name=${file#"$1"}
		cp "$file" "$to/$2${name//\//_}"
	done
}

scripts /var/lib/dpkg/info /usr/share /usr/lib /usr/bin /usr/sbin /etc | copy / installed_
[ $# -gt 0 ] || exit 0
work=$(mktemp -d /var/tmp/agentsh-commands.XXXXXX)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
cd "$work"
for package; do
	apt-get -q -o APT::Sandbox::User=root download "$package" >/dev/null || echo "$package: not downloaded" >&2
done
for deb in *.deb; do
	[ -e "$deb" ] || continue
	dpkg-deb -R "$deb" tree
	scripts tree | copy tree/ "${deb%%_*}_"
	rm -rf tree
done
