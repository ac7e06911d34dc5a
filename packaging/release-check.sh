#!/bin/bash
# Have goreleaser check its configuration and make a snapshot, and compare what it
# makes with what "make packages" made: release-check.sh GORELEASER
set -euo pipefail
goreleaser=$1
"$goreleaser" check
# Without a remote goreleaser does not look at the commit, whose time files get.
if [ -z "$(git remote)" ]; then
	export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=remote.origin.url GIT_CONFIG_VALUE_0=https://agentsh.invalid/agentsh
fi
# One at a time: an archive lists programs in the order of their builds.
"$goreleaser" release --snapshot --clean --parallelism 1
if ! diff <(sort -k2 out/packages/checksums.txt) <(sort -k2 dist/checksums.txt); then
	echo "release-check: goreleaser and packaging/release differ" >&2
	exit 1
fi
echo "release-check: $(wc -l <dist/checksums.txt) files, the same digests"
