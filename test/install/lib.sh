# Functions of the install tests.
# shellcheck shell=bash

# enter ROOT COMMAND...: run a command in a root.
enter() {
	unshare --mount --pid --fork --kill-child --propagation private -- /bin/busybox sh "$HERE/enter.sh" "$@"
}

# new_root NAME: a Debian root with nothing of agentsh in it.
new_root() {
	mkdir "$WORK/$1"
	tar -xf "$BASE" -C "$WORK/$1"
}

fail() {
	echo "install-test: $CASE: $*" >&2
	exit 1
}

# expect STATUS TEXT COMMAND...: a command ends with the status and says the text.
# The status "not 0" is any other.
expect() {
	local status=0 want=$1 text=$2 out
	shift 2
	out=$("$@" 2>&1) || status=$?
	if [ "$want" = "not 0" ]; then
		[ "$status" != 0 ] || fail "$*: succeeded: $out"
	else
		[ "$status" = "$want" ] || fail "$*: status $status, want $want: $out"
	fi
	case $out in
	*"$text"*) ;;
	*) fail "$*: nothing of '$text' in: $out" ;;
	esac
}

# digests ROOT: what the shells of a root are.
digests() {
	local shell
	for shell in bin/sh bin/bash usr/bin/sh usr/bin/bash; do
		[ -e "$1/$shell" ] || [ -L "$1/$shell" ] || continue
		echo "$shell $(stat -c '%F %a %u:%g %N' "$1/$shell") $(enter "$1" /run/busybox sha256sum "/$shell")"
	done
}

# check_installation ROOT: the checks of every installation.
check_installation() {
	local root=$1 before
	expect 0 '"program": "agentsh"' enter "$root" agentsh version --json
	expect 0 '"program": "agentctl"' enter "$root" agentctl version --json
	expect 0 'A session can be opened here' enter "$root" agentsh detect
	expect 0 '' enter "$root" agentsh exec -- true
	expect 0 'agent-sandbox' enter "$root" agentsh policy check agent-sandbox
	expect 0 'rule: ' enter "$root" agentsh policy explain -p dev-safe -- ls
	expect 125 'Or name a policy of the packages: agent-sandbox, ' enter "$root" agentsh exec -p agent-sandbx -- true
	expect 1 '' enter "$root" agentsh exec -- false
	expect 'not 0' 'rule machine-secrets' enter "$root" agentsh exec -- cat /etc/shadow

	before=$(digests "$root")
	expect 1 'the shell itself' enter "$root" agentsh shim status
	expect 0 'the shim, for' enter "$root" agentsh shim install
	expect 0 'the shim, for' enter "$root" agentsh shim status
	# shellcheck disable=SC2016 # the inner shell expands it
	expect 0 'confined' enter "$root" /bin/sh -c '[ "$(id -u)" = 0 ] || echo confined'
	expect 0 '' enter "$root" agentsh shim uninstall
	# shellcheck disable=SC2016 # the inner shell expands it
	expect 0 'free' enter "$root" /bin/sh -c '[ "$(id -u)" != 0 ] || echo free'
	[ "$(digests "$root")" = "$before" ] || fail "the shells are not what they were"
}

# block_kill ROOT BASE: a policy that refuses kill, over one that is installed.
block_kill() {
	cat >"$1/etc/agentsh/block-kill.yaml" <<-YAML
		version: 1
		name: block-kill
		extends: [/etc/agentsh/policies/$2.yaml]
		env_inject:
		  BASH_ENV: "/usr/lib/agentsh/bash_startup.sh"
		command_rules:
		  - name: block-kill
		    commands: [kill]
		    decision: deny
	YAML
}

# check_bash_startup ROOT: a kill of bash must be decided by the policy. The control has
# the same kill, allowed.
check_bash_startup() {
	local root=$1
	block_kill "$root" default
	# shellcheck disable=SC2016 # the inner shell expands it
	local text='kill -0 $$'
	expect 0 'function' enter "$root" agentsh exec -- bash -c 'type -t kill'
	expect 0 '' enter "$root" agentsh exec -- bash -c "$text"
	expect 'not 0' 'rule block-kill' enter "$root" agentsh exec --policy /etc/agentsh/block-kill.yaml -- bash -c "$text"
	expect 'not 0' 'rule block-kill' enter "$root" agentsh exec --policy /etc/agentsh/block-kill.yaml -- env -i /bin/bash -c "$text"
	rm "$root/etc/agentsh/block-kill.yaml"
}

# installed ROOT: the files of a package, with their modes.
installed() {
	local f
	for f in usr/bin/agentsh usr/bin/agentctl; do
		[ "$(stat -c %a "$1/$f")" = 755 ] || fail "/$f has the wrong mode"
	done
	[ "$(readlink -f "$1/usr/lib/agentsh/agentsh")" = "$(readlink -f "$1/usr/bin/agentsh")" ] || fail "/usr/lib/agentsh/agentsh does not lead to the program"
	for f in usr/lib/agentsh/bash_startup.sh etc/agentsh/config.yaml etc/agentsh/policies/default.yaml usr/lib/systemd/system/agentsh@.service \
		usr/share/man/man1/agentsh-exec.1.gz usr/share/bash-completion/completions/agentsh usr/share/doc/agentsh/THIRD_PARTY_NOTICES \
		usr/share/agentsh/containers/seccomp-user.json usr/share/agentsh/containers/seccomp-root.json usr/share/agentsh/containers/apparmor; do
		[ "$(stat -c %a "$1/$f")" = 644 ] || fail "/$f has the wrong mode or is missing"
	done
}

# gone ROOT: nothing of a package is left but configuration.
gone() {
	local left
	left=$(find "$1" -xdev -path "$1/proc" -prune -o -name '*agent*' -print | grep -v -e "^$1/var/lib/dpkg/info/" -e "^$1/var/lib/agentsh" -e "^$1/etc/agentsh" || true)
	[ -z "$left" ] || fail "left behind: $left"
}
