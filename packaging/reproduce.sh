#!/bin/bash
# Build the packages again, from a copy of the tree in another directory, in another
# time zone, under another umask and without the caches of the first build, and
# compare: reproduce.sh NFPM
set -euo pipefail
nfpm=$(realpath "$1")
copy=$(mktemp -d /var/tmp/agentsh-reproduce-XXXXXX)
trap 'rm -rf "$copy"' EXIT
mkdir "$copy/elsewhere" "$copy/home"
GOMODCACHE=$(go env GOMODCACHE) # sources, which go.sum holds
export GOMODCACHE
(
	umask 077
	packaging/copy.sh "$copy/elsewhere"
	cd "$copy/elsewhere"
	export TZ=Asia/Kathmandu LC_ALL=C HOME=$copy/home GOCACHE=$copy/cache
	go run ./packaging/release packages --version "$PACKAGE_VERSION" --commit "$COMMIT" --epoch "$SOURCE_DATE_EPOCH" --nfpm "$nfpm"
)
if ! diff out/packages/checksums.txt "$copy/elsewhere/out/packages/checksums.txt"; then
	echo "reproduce: the second build differs" >&2
	exit 1
fi
echo "reproduce: $(wc -l <out/packages/checksums.txt) files, the same digests"
