#!/bin/sh
# Make a tar of a small Debian root, from the mirror that this machine uses:
# root.sh SUITE FILE
set -eu
suite=$1
file=$2
sources=/etc/apt/sources.list.d/debian.sources
[ -e "$sources" ] || sources=/etc/apt/sources.list
mkdir -p "$(dirname "$file")"
# usrmerge needs a perl that such a root does not have.
# shellcheck disable=SC2016 # mmdebstrap's shell expands it
mmdebstrap --quiet --variant=minbase --mode=root --include=procps,usr-is-merged \
	--customize-hook='chroot "$1" dpkg --force-depends --purge usrmerge >&2' "$suite" "$file.new.tar" "$sources" </dev/null
mv "$file.new.tar" "$file"
