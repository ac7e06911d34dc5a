#!/bin/sh
# Runs in gVisor: what doc/platforms/gvisor.md says of it besides the checks of every place.
#
#   gvisor.sh DIR     DIR holds agentsh, policies of the packages, and config.yaml and command of the page
here=$1
work=$(mktemp -d /tmp/places.XXXXXX) || exit 2
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
mkdir -p "$work/ws" /etc/agentsh
cp -r "$here/policies" /etc/agentsh/
cp "$here/agentsh" /usr/bin/
export HOME="$work/home" XDG_STATE_HOME="$work/state"
cd "$work/ws" || exit 2

say() { printf '%s\t%s\n' "$1" "$2"; }

# refused prints the exit status of a session that must be refused, and the text if its message has it.
refused() {
	want=$1
	shift
	agentsh exec "$@" -- true >"$work/refusal" 2>&1
	status=$?
	cat "$work/refusal" >&2
	if grep -q -- "$want" "$work/refusal"; then
		echo "exit $status, $want"
	else
		echo "exit $status without $want"
	fi
}

# why prints the reason that detect gives for a line with no.
why() { sed -n "/^no   $1 *\$/,/^ *change:/s/^ *why: *//p" "$work/detect"; }

# policy makes a policy of plain and one more line, and prints its name.
policy() {
	printf 'version: 1\nname: p\nextends: /etc/agentsh/policies/plain.yaml\n%s\n' "$1" >"$work/policy.yaml"
	echo "$work/policy.yaml"
}

agentsh detect >"$work/detect" 2>&1
cat "$work/detect" >&2
for name in 'seccomp user notification' Landlock 'nf_tables in a network namespace' 'control groups'; do
	say "missing: $name" "$(why "$name")"
done
command=$(cat "$here/command")
say "a workspace of root" "$(eval "$command" 2>&1 | grep -c 'give it to them (chown -R 60700:60700)')"
chown 60700:60700 "$work/ws"
echo 'test: ; @echo ran' >Makefile
say "the command of the page" "$(eval "$command" 2>>"$work/errors")"
cp "$here/config.yaml" /etc/agentsh/
say "the configuration of the page" "$(agentsh exec -- make test 2>>"$work/errors")"
agentsh exec --audit "$work/audit" -- python3 -c 'import socket; socket.create_connection(("192.0.2.1", 80), 60)' 2>>"$work/errors"
say "a connection that knows no proxy" "exit $?, $(grep -c '"192.0.2.1.*deny\|deny.*"192.0.2.1' "$work/audit") denied"
say "--share-network" "$(refused "Landlock's network rights" --share-network)"
say "a limit of memory" "$(refused max_memory_mb --policy "$(policy 'resource_limits: {max_memory_mb: 100}')")"
say "a limit of the processor" "$(refused cpu_quota_percent --policy "$(policy 'resource_limits: {cpu_quota_percent: 50}')")"
cat "$work/errors" "$work/audit" >&2
