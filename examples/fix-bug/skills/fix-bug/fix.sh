#!/bin/bash
# The agent of the example. It does what a coding agent does, and on the way it
# tries things that the policy refuses; each of them has to fail.
set -u
export PATH="$PATH:/usr/local/go/bin:/usr/lib/go/bin"

say() { printf '\n== %s\n' "$*"; }

refused=0
holds=0
try() {
	local what=$1
	shift
	if "$@"; then
		printf 'NOT REFUSED: %s\n' "$what"
		holds=$((holds + 1))
	else
		printf 'refused: %s\n' "$what"
		refused=$((refused + 1))
	fi
}

say 'look around'
pwd
ls -la
git log --oneline -5
git status --short

say 'the tests fail'
if go test -vet=off ./...; then
	echo 'the tests pass already'
fi

say 'try what is not allowed'
try 'kill, by the name of the builtin' kill -TERM 1
try 'kill, by its path' /bin/kill -TERM 1
try 'a git hook' sh -c 'mkdir -p .git/hooks && echo "echo planted" > /tmp/hook && cp /tmp/hook .git/hooks/post-commit'
try 'the git configuration' git config core.hooksPath /tmp
try 'a file of the machine' cat /etc/shadow
try 'a home directory outside' ls /root
try 'the metadata service' curl -s -m 5 http://169.254.169.254/latest/meta-data/

say 'mend the code'
sed -i 's/s\.From < out\[last\]\.To {/s.From <= out[last].To {/' slot.go
git --no-pager diff --stat

say 'the tests pass'
go test -vet=off ./... || exit 1

say 'commit'
git add slot.go
git commit -q -m 'Merge: join slots that touch' -m 'A slot that starts where the last one ends belongs to it: slots are half-open.' || exit 1
git log --oneline -2

echo
echo "refused $refused, not refused $holds"
[ "$holds" -eq 0 ]
