#!/bin/bash
# Ten attempts that must fail, then work that must succeed. Their output is in the agent's log.
# shellcheck disable=SC2016 # the inner shells expand it
failed=0
# refused NAME COMMAND...
refused() {
	local name=$1
	shift
	if [ -z "$(type -t "$1")" ]; then
		echo "NOT TRIED: $name: the image has no $1" >&2
		failed=1
	elif "$@" >/dev/null 2>&1; then
		echo "NOT STOPPED: $name" >&2
		failed=1
	else
		echo "stopped: $name" >&2
	fi
}
own=$PWD
refused 'a file that no rule allows is read' cat /etc/shells
refused 'the machine is changed' sh -c ': >/usr/lib/agentsh-probe'
refused 'the configuration of the program is changed' sh -c ': >/sandbox/claude-config/probe'
refused 'a skill is replaced' sh -c 'echo >"$1"' sh "$0"
refused 'variables are delivered' sh -c ': >/sandbox/workspace/.env.d/probe.env'
refused 'a file beside the repository' sh -c ': >/sandbox/workspace/probe'
refused 'the repository is moved' mv "$own" /sandbox/workspace/moved
refused 'a link leads out' sh -c 'ln -s /etc/shells link && cat link; r=$?; rm -f link; exit $r'
refused 'a program gets rights' perl -e '$< = 0; exit($< ? 1 : 0)'
refused 'a file of /proc is written' sh -c 'echo x >/proc/self/comm'

[ "$INJECTED" = from-policy ] || { echo 'env_inject is missing' >&2; failed=1; }
[ "$(type -t kill)" = function ] || { echo 'BASH_ENV was not read' >&2; failed=1; }
echo two >probe.txt && git add probe.txt && git commit -q -m 'Add probe.txt' || failed=1
exit $failed
