#!/bin/bash
# Runs smoke.sh against places that are this machine: exec:sh, a WebSocket of agentsh serve, and
# a sshd of its own.
#
#   test/platforms/local.sh [exec|ws|ssh...]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
bin=$(dirname "${AGENTCTL:-$root/bin/agentctl}")
dir=$(mktemp -d /var/tmp/agentsh-local.XXXXXX)
server=
stop() {
	[ -z "$server" ] || { kill "$server" 2>/dev/null; wait "$server" 2>/dev/null; } || :
	server=
}
finish() {
	local status=$?
	stop
	rm -rf "$dir"
	exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# free prints a port that nothing listens at.
free() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# listening waits until something accepts connections at a port, for half a minute.
listening() {
	timeout 30 bash -c 'until (: <>/dev/tcp/127.0.0.1/'"$1"') 2>/dev/null; do read -rt 0.2 <> <(:) || :; done' ||
		{ echo "local.sh: nothing listens at port $1" >&2; cat "$dir/log" >&2; return 1; }
}

over_exec() { "$here/smoke.sh" exec exec:sh; }

over_ws() {
	local port
	port=$(free)
	(umask 077 && head -c 32 /dev/urandom | base64 >"$dir/place.key")
	XDG_STATE_HOME=$dir/place "$bin/agentsh" serve --listen "ws:127.0.0.1:$port" --key "$dir/place.key" >"$dir/log" 2>&1 &
	server=$!
	listening "$port"
	PLACE_SHELL="env PATH='$bin:$PATH' sh" "$here/smoke.sh" socket "ws://127.0.0.1:$port/" --connect-key "$dir/place.key"
	stop
}

over_ssh() {
	local port sshd
	port=$(free) sshd=$(command -v sshd || echo /usr/sbin/sshd)
	mkdir -p /run/sshd "$dir/bin" "$dir/home"
	ssh-keygen -q -t ed25519 -N '' -f "$dir/host"
	ssh-keygen -q -t ed25519 -N '' -f "$dir/user"
	cat >"$dir/sshd_config" <<-EOF
		Port $port
		ListenAddress 127.0.0.1
		HostKey $dir/host
		AuthorizedKeysFile $dir/user.pub
		PidFile none
		StrictModes no
		UsePAM no
		SetEnv XDG_STATE_HOME=$dir/place HOME=$dir/home
	EOF
	echo "[127.0.0.1]:$port $(cat "$dir/host.pub")" >"$dir/known_hosts"
	printf '#!/bin/sh\nexec %s -i %s -o IdentitiesOnly=yes -o UserKnownHostsFile=%s "$@"\n' \
		"$(command -v ssh)" "$dir/user" "$dir/known_hosts" >"$dir/bin/ssh"
	chmod +x "$dir/bin/ssh"
	"$sshd" -D -f "$dir/sshd_config" -E "$dir/log" &
	server=$!
	listening "$port"
	PATH=$dir/bin:$PATH "$here/smoke.sh" ssh "ssh://$(id -un)@127.0.0.1:$port"
	stop
}

[ $# -gt 0 ] || set -- exec ws ssh
for over in "$@"; do
	printf '\n==== %s\n' "$over"
	"over_$over"
done
