# shellcheck shell=bash disable=SC2034
# What the scripts of vendors share. Each sets remove, a function that deletes what it made.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
name=agentsh-$(date +%H%M%S)-$$
dir=$(mktemp -d /var/tmp/agentsh-platform.XXXXXX)

finish() {
	local status=$?
	trap '' INT TERM HUP # what is made is deleted, whoever is impatient
	remove || { echo "delete $name by hand: it may still be there" >&2; status=1; }
	rm -rf "$dir"
	exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# origin says where a program comes from, or what a variable is.
origin() {
	case $1 in
	openshell) echo "it is in OpenShell's package, https://github.com/NVIDIA/OpenShell; register a gateway with: openshell gateway add ADDRESS --name NAME" ;;
	bl) echo "install Blaxel's command line, https://docs.blaxel.ai/cli-reference/introduction, and run: bl login WORKSPACE" ;;
	daytona) echo "install Daytona's command line, https://www.daytona.io/docs/en/v2/cli, and run: daytona login" ;;
	e2b) echo "run: npm install -g @e2b/cli" ;;
	rli) echo "run: npm install -g @runloop/rl-cli" ;;
	modal) echo "run: pip install modal && modal token new" ;;
	IMAGE) echo "as in IMAGE=ghcr.io/example/agent:1; the Dockerfile in doc/platforms/openshell.md makes one" ;;
	POLICY) echo "as in POLICY=openshell.yaml, OpenShell's own policy; doc/platforms/openshell.md has one" ;;
	TEMPLATE) echo "as in TEMPLATE=agentsh-smoke; doc/platforms/e2b.md says how it is made" ;;
	BLUEPRINT) echo "as in BLUEPRINT=agentsh-smoke; doc/platforms/runloop.md says how it is made" ;;
	*_API_KEY) echo "with a key of your account there" ;;
	*) echo "install the package of your distribution that has it" ;;
	esac
}

# needs ends the script unless there are the programs, the variables (NAME=) and the Python modules (python:NAME) that it names.
# It names all that is missing.
needs() {
	local what missing=
	for what in "$@"; do
		case $what in
		*=) what=${what%=}; [ -n "${!what:-}" ] || { echo "set $what: $(origin "$what")" >&2; missing=yes; } ;;
		python:*) python3 -c "import ${what#*:}" 2>/dev/null || { echo "Python has no ${what#*:}: $(origin "${what#*:}")" >&2; missing=yes; } ;;
		*) command -v "$what" >/dev/null || { echo "$what is not installed: $(origin "$what")" >&2; missing=yes; } ;;
		esac
	done
	[ -z "$missing" ] || exit 2
}

# built ends the script unless the program of this release is there.
built() { [ -x "$root/bin/$1" ] || { echo "$root/bin/$1 is missing: run make build" >&2; exit 2; }; }

# place_key makes the key of a place that listens.
place_key() { (umask 077 && head -c 32 /dev/urandom | base64 >"$dir/place.key"); }
