#!/bin/sh
# Runs as a command of agentsh in an image, with what the image has. Prints one line for each
# check: its name, a tab and what came out.
say() { printf '%s\t%s\n' "$1" "$2"; }
status() {
	"$@" >/dev/null 2>&1
	echo "exit $?"
}
write() { status sh -c ": >'$1'"; }
say workspace "$(pwd)"
say "workspace, written" "$(write file)"
say "/tmp, written" "$(write /tmp/file)"
say "/etc/ssh, read" "$(cat /etc/ssh/ssh_config)"
say "key of the machine, read" "$(status cat /etc/ssh/ssh_host_ed25519_key)"
say "/etc/shadow, read" "$(status cat /etc/shadow)"
say "/usr, written" "$(write /usr/local/file)"
say "configuration, written" "$(write /etc/agentsh/config.yaml)"
say "denied command" "$(status su)"
case $1 in
debian | ubuntu | python)
	say "socket" "$(status python3 -c 'import socket; socket.socket()')"
	say "listen" "$(status python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); socket.create_connection(s.getsockname())')"
	;;
node)
	say "npm" "$(status npm --version)"
	say "listen" "$(status node -e 'require("net").createServer().listen(0, "127.0.0.1", function () { process.exit(0) })')"
	;;
golang)
	mkdir -p app && cd app && printf 'module app\n\ngo 1.21\n' >go.mod && printf 'package main\n\nfunc main() { println("built") }\n' >main.go
	say "go build" "$(status go build -o app .)"
	say "built program" "$(./app 2>&1)"
	;;
esac
case $1 in
python)
	say "venv" "$(status python3 -m venv --without-pip venv)"
	say "venv's python" "$(status venv/bin/python -c 'import json')"
	;;
esac
