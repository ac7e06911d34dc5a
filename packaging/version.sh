#!/bin/sh
# Print the version of packages made from this tree: that of the tag, or one that
# sorts before the first release.
set -eu
if tag=$(git describe --tags --exact-match --match 'v[0-9]*' 2>/dev/null); then
	echo "${tag#v}"
else
	echo "0.1.0-pre$(git rev-list --count HEAD 2>/dev/null || echo 0)"
fi
