#!/bin/sh
# Runs in a container of Docker with default flags: what doc/platforms/docker.md says of
# it besides the checks of every place.
#
#   docker.sh DIR     DIR holds agentsh, and config.yaml and policies of the packages; /volume is a directory of root outside.
#                     Where it is not root, /etc/agentsh is that of the packages
here=$1
work=$(mktemp -d /tmp/places.XXXXXX) || exit 2
chmod 755 "$work"
mkdir "$work/ws"
export PATH="$here:$PATH"
cd "$work/ws" || exit 2

say() { printf '%s\t%s\n' "$1" "$2"; }

# told runs agentsh, and prints its exit status and how many lines of its errors have a text.
told() {
	want=$1
	shift
	agentsh "$@" >"$work/out" 2>"$work/errors"
	status=$?
	cat "$work/out" "$work/errors" >&2
	echo "exit $status, $(grep -c -- "$want" "$work/errors")"
}

if [ "$(id -u)" != 0 ]; then
	say "a user's workspace" "$(told 'note: this container gives less' exec --config "$here/config.yaml" -p "$here/policies/plain.yaml" -- touch file), owner $(stat -c %u file)"
	say "a user's volume of root" "$(told /volume exec --config "$here/config.yaml" -p "$here/policies/plain.yaml" -w /volume -- true)"
	home=$work/ws
	at_home() { HOME=$home told "$@"; }
	say "a home as workspace" "$(at_home '' exec -- sh -c 'mkdir -p .config/agentsh .local/bin; echo version: 1 >.config/agentsh/policy.yaml; echo echo planted >.local/bin/planted; chmod 755 .local/bin/planted')"
	say "its state" "$(HOME=$home agentsh events --json | head -1 | grep -o '"type":"[a-z]*"'), $(ls "$home/.local")"
	say "what commands left is agentsh's" "$(at_home 'agentsh uses .*remove it' exec -- true)"
	mkdir "$work/other" && cd "$work/other" || exit 2
	say "a policy of theirs, elsewhere" "$(at_home 'commands of an earlier session could write it' exec -- true)"
	rm -r "$home/.config"
	say "a program of theirs, elsewhere" "$(at_home '' exec -- planted)"
	export XDG_STATE_HOME="$work/ws/state"
	cd "$work/ws" || exit 2
	say "state in the workspace" "$(at_home 'set XDG_STATE_HOME to a directory outside' exec -- true)"
	exit 0
fi
mkdir -p /etc/agentsh /usr/lib/agentsh
cp -r "$here/policies" "$here/config.yaml" /etc/agentsh/
cp "$here/bash_startup.sh" /usr/lib/agentsh/
cp "$here/agentsh" /usr/bin/

say "the first session" "$(told 'note: this container gives less' exec -- touch file)"
say "the next one" "$(told '' exec -- test -e file)"
say "owner of the workspace" "$(stat -c %u "$work/ws")"
say "owner of its file" "$(stat -c %u "$work/ws/file")"
say "a volume of root" "$(told 'chown -R' exec -w /volume -- true)"
say "without the key" "$(printf 'version: 1\npolicy: /etc/agentsh/policies/plain.yaml\n' >"$work/c.yaml"; told 'degraded: \[namespaces' exec --config "$work/c.yaml" -- true)"
printf 'version: 1\nname: own\nextends: /etc/agentsh/policies/plain.yaml\ngit_guard: true\n' >"$work/own.yaml"
sed "s,^policy: .*,policy: $work/own.yaml," /etc/agentsh/config.yaml >"$work/c.yaml"
say "a policy of one's own" "$(told 'own.yaml:4:12: git_guard cannot be enforced here' exec --config "$work/c.yaml" -- true)"
agentsh detect >"$work/detect" 2>&1
cat "$work/detect" >&2
for name in 'mount namespace' 'FUSE mount' 'control groups' 'seccomp user notification' Landlock 'trace a descendant'; do
	say "detect: $name" "$(sed -n "s/^\(yes\|no\) *$name  .*/\1/p" "$work/detect")"
done
say "detect: a session" "$(grep -c '^A session can be opened here' "$work/detect")"
say "the shim" "$(told '' shim install)"
say "a session beside it" "$(told 'uninstall it' exec -- true)"
