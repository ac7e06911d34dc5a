#!/bin/bash
# Build the packages again, from a copy of the tree in another directory, in another
# time zone, under another umask and without the caches of the first build, and
# compare: reproduce.sh NFPM
set -euo pipefail
nfpm=$(realpath "$1")
copy=$(mktemp -d /var/tmp/agentsh-reproduce-XXXXXX)
trap 'chmod -R u+w "$copy"; rm -rf "$copy"' EXIT
mkdir "$copy/elsewhere"
# What is committed or would be.
git ls-files -z --cached --others --exclude-standard | tar --null --ignore-failed-read -T - -cf - | (umask 077 && tar --no-same-permissions -xf - -C "$copy/elsewhere")
(
	cd "$copy/elsewhere"
	umask 077
	export TZ=Asia/Kathmandu LC_ALL=C HOME=$copy/home GOCACHE=$copy/cache GOMODCACHE
	GOMODCACHE=$(go env GOMODCACHE)
	mkdir "$HOME"
	go run ./packaging/release packages --version "$PACKAGE_VERSION" --commit "$COMMIT" --epoch "$SOURCE_DATE_EPOCH" --nfpm "$nfpm"
)
if ! diff out/packages/checksums.txt "$copy/elsewhere/out/packages/checksums.txt"; then
	echo "reproduce: the second build differs" >&2
	exit 1
fi
echo "reproduce: $(wc -l <out/packages/checksums.txt) files, the same digests"
