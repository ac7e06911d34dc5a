#!/bin/bash
# attack: options before the subcommand hide what is pushed with force
set -u
cd "$(mktemp -d "${WORKDIR:-/tmp}/own.XXXXXX")" || { echo "RESULT error workdir"; exit; }
result() { echo "RESULT $*"; exit; }
git init -q . && git init -q --bare far
git -c user.name=a -c user.email=a@b commit -q --allow-empty -m a || result error git
git push -q far HEAD:refs/heads/x 2>/dev/null || result error push
git -c user.name=a -c user.email=a@b commit -q --amend --allow-empty -m b
for try in "-c core.pager=cat -C . push -f" "--no-pager push --forc" "push -qf" "push --force-with-lease"; do
	# shellcheck disable=SC2086 # words
	git $try far HEAD:refs/heads/x >/dev/null 2>&1
	[ "$(git -C far log -1 --format=%s x)" = b ] && result allowed
done
result blocked
