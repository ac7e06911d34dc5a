#!/bin/sh
# Makes the git repository examples/fix-bug/repo out of examples/fix-bug/src.
# Author and dates are fixed, so the commit is the same on every machine. A
# repository that is already there and starts from that commit is kept, with
# the branches of earlier runs.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_OBJECT_DIRECTORY
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
export GIT_AUTHOR_NAME='Booking Team' GIT_AUTHOR_EMAIL=team@booking.example
export GIT_COMMITTER_NAME="$GIT_AUTHOR_NAME" GIT_COMMITTER_EMAIL="$GIT_AUTHOR_EMAIL"
export GIT_AUTHOR_DATE='2026-01-05T09:00:00+00:00' GIT_COMMITTER_DATE='2026-01-05T09:00:00+00:00'

new=$(mktemp -d "$here/.repo.XXXXXX")
trap 'rm -rf "$new"' EXIT
cp -R "$here/src/." "$new/"
git -C "$new" -c init.defaultBranch=main init -q
git -C "$new" -c core.autocrlf=false add -A
git -C "$new" -c core.hooksPath=/dev/null -c commit.gpgSign=false commit -q -m 'Slots: merge and free'
head=$(git -C "$new" rev-parse HEAD)

if [ -e "$here/repo/.git" ]; then
	if [ "$(GIT_CEILING_DIRECTORIES=$here git -C "$here/repo" rev-parse -q --verify HEAD || true)" = "$head" ]; then
		exit 0
	fi
	echo "prepare.sh: examples/fix-bug/repo is older than examples/fix-bug/src and is made again" >&2
fi
rm -rf "$here/repo"
chmod 755 "$new"
mv "$new" "$here/repo"
