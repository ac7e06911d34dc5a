#!/bin/sh
# Make a tar of a small Debian root, from the mirror that this machine uses:
# root.sh SUITE FILE
set -eu
suite=$1
file=$2
sources=/etc/apt/sources.list.d/debian.sources
[ -e "$sources" ] || sources=/etc/apt/sources.list
mkdir -p "$(dirname "$file")"
mmdebstrap --quiet --variant=minbase --mode=root --include=procps "$suite" "$file.new.tar" "$sources" </dev/null
mv "$file.new.tar" "$file"
