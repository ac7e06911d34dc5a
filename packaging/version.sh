#!/bin/sh
# Print the version of packages made from this tree: that of the tag, or one that
# sorts before the first release.
set -eu
repository() { git -c safe.directory='*' "$@" 2>/dev/null; }
if tag=$(repository describe --tags --exact-match --match 'v[0-9]*'); then
	echo "${tag#v}"
else
	echo "0.1.0-pre$(repository rev-list --count HEAD || echo 0)"
fi
