#!/bin/bash
# Have goreleaser check its configuration and make a snapshot, and compare what it
# makes with what packaging/release makes, digest by digest. It works in a copy with
# a repository of its own: goreleaser wants a commit and a remote, whatever this
# tree is. release-check.sh GORELEASER NFPM
set -euo pipefail
goreleaser=$(realpath "$1")
nfpm=$(realpath "$2")
copy=$(mktemp -d /var/tmp/agentsh-release-XXXXXX)
trap 'rm -rf "$copy"' EXIT
packaging/copy.sh "$copy"
cd "$copy"
export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_DATE="@$SOURCE_DATE_EPOCH +0000" GIT_COMMITTER_DATE="@$SOURCE_DATE_EPOCH +0000"
git -c init.defaultBranch=main init -q
git remote add origin https://agentsh.invalid/agentsh
git add -A
git -c user.name=agentsh -c user.email=agentsh@agentsh.invalid -c commit.gpgsign=false commit -q -m copy
COMMIT=$(git rev-parse HEAD)
export COMMIT

go run ./packaging/release packages --version "$PACKAGE_VERSION" --commit "$COMMIT" --epoch "$SOURCE_DATE_EPOCH" --nfpm "$nfpm"
"$goreleaser" check
# One at a time: an archive lists programs in the order of their builds.
"$goreleaser" release --snapshot --clean --parallelism 1
if ! diff <(sort -k2 out/packages/checksums.txt) <(sort -k2 dist/checksums.txt); then
	echo "release-check: goreleaser and packaging/release differ" >&2
	exit 1
fi
echo "release-check: $(wc -l <dist/checksums.txt) files, the same digests"
