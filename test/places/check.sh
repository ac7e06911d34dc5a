#!/bin/sh
# Runs in a place, as the user that agentsh is to run as, with what busybox has.
# Prints one line for each check: its name, a tab and what came out.
#
#   check.sh DIR     DIR holds agentsh and policy.yaml; a scratch directory is made in $SCRATCH (/var/tmp)
#
# MAPPED=1: with mapped_files in place of file_server; the policy then has a rule inside the workspace
# shellcheck disable=SC2016 # scripts that run inside
here=$1 policy=$1/policy.yaml
work=$(mktemp -d "${SCRATCH:-/var/tmp}/places.XXXXXX") || exit 2
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
mkdir "$work/ws" "$work/outside"
echo secret >"$work/outside/secret"
chmod 644 "$work/outside/secret"
printf '#!/bin/sh\n# the program that the policy denies\necho ran\n' >"$work/ws/forbidden"
chmod 755 "$work/ws/forbidden"
if [ -n "${MAPPED:-}" ]; then
	policy=$work/policy.yaml
	echo "  - {name: closed, paths: ['\${WORKSPACE}/closed', '\${WORKSPACE}/closed/**'], operations: [write, create, delete, rename, link], decision: deny}" >"$work/rule"
	sed "/^file_rules:/r $work/rule" "$here/policy.yaml" >"$policy"
	mkdir "$work/ws/closed"
	echo kept >"$work/ws/closed/file"
fi
[ "$(id -u)" != 0 ] || chown -R 60700:60700 "$work/ws"
export HOME="$work/home" XDG_STATE_HOME="$work/state" TMPDIR="$work"
cd "$work/ws" || exit 2

say() { printf '%s\t%s\n' "$1" "$2"; }

# running counts the processes that sleep for so many seconds.
running() {
	n=0
	for f in /proc/[0-9]*/cmdline; do
		[ "$(tr '\0' ' ' <"$f" 2>/dev/null)" != "sleep $1 " ] || n=$((n + 1))
	done
	echo $n
}

# gone waits until none of them is left.
gone() {
	seconds=0
	while [ $seconds -lt 120 ]; do
		[ "$(running "$1")" -gt 0 ] || { echo ended; return; }
		sleep 1
		seconds=$((seconds + 1))
	done
	echo "still there"
}

"$here/agentsh" detect >"$work/detect" 2>&1
fallbacks=$(sed -n 's/^A session opens here only with degraded: \[\([^]]*\)\].*/\1/p' "$work/detect" | tr -d ' ')
if grep -q '^No session can be opened' "$work/detect"; then
	say fallbacks none-help
	"$here/agentsh" exec -p "$policy" -- true >"$work/refusal" 2>&1
	say refused "exit $?"
	say reason "$(grep -c 'no fallback opens a session here' "$work/refusal")"
	cat "$work/detect" >&2
	exit 0
fi
[ -z "${MAPPED:-}" ] || fallbacks=$(echo "$fallbacks" | sed 's/file_server/mapped_files/')
say fallbacks "${fallbacks:--}"
sed -n 's/^\(commands\|files outside the workspace\|files in the workspace\|signals\|network\|unix sockets\|env_inject, nested\) *\(kernel\|supervisor\|advisory\|not enforced\) .*/enforced: \1	\2/p' <<D >"$work/enforced"
$("$here/agentsh" detect --degraded "$fallbacks" 2>/dev/null)
D
cat "$work/enforced"
if [ -n "$fallbacks" ]; then
	"$here/agentsh" exec -p "$policy" -- true >"$work/refusal" 2>&1
	say refused "exit $?, $(grep -c '^  degraded: \[' "$work/refusal") fallbacks"
fi

# x runs a command under the policy, with the fallbacks that the machine needs.
x() { "$here/agentsh" exec -p "$policy" --audit "$work/audit.jsonl" --degraded "$fallbacks" "$@" 2>>"$work/errors"; }

# status runs a script inside and gives its exit status.
status() {
	x -- sh -c "$1" >/dev/null
	echo $?
}

x -- true
say true "exit $?"
x -- ./forbidden >/dev/null
say "denied command" "exit $?"
say "denied command, nested" "exit $(status ./forbidden)"
say "denied program by another name" "exit $(status 'cp forbidden other && ./other')"
say "env_inject" "$(x -- sh -c 'echo "$INJECTED"')"
say "env_inject, nested" "$(x -- sh -c "env -i $(command -v sh) -c 'echo \"\$INJECTED\"'")"
say "file outside, read" "exit $(status ": <$work/outside/secret")"
say "file outside, written" "exit $(status ": >$work/outside/secret")"
say "secret in a tree that is shown" "exit $(status 'grep -q . /etc/shadow')"
say "system, written" "exit $(status ': >/etc/places')"
x -- sh -c 'echo made >file'
say "workspace, written" "$(cat file 2>/dev/null)"
if [ -n "${MAPPED:-}" ]; then
	say "file that a rule in the workspace denies, written" "exit $(status 'echo x >closed/file')"
	say "the same, removed, renamed, by another name" "exit $(status 'rm closed/file || mv closed/file f || mv closed f || ln closed/file f && echo x >f')"
	say "the same, as it is" "$(cat closed/file)"
	say "a missing name" "$(x -- sh -c 'cat missing 2>&1 | sed "s/.*: //"')"
	say "a script in the workspace" "exit $(status 'printf "#!/bin/sh\n" >s; chmod 755 s; ./s')"
	say "the same by its interpreter" "exit $(status 'sh s')"
	x --timeout 120s -- sh -c 'cat file >started; until [ "$(cat file)" = edited ]; do sleep 0.1; done; echo seen' >"$work/seen" &
	session=$!
	seconds=0
	while [ $seconds -lt 120 ] && [ ! -s started ]; do
		sleep 1
		seconds=$((seconds + 1))
	done
	echo edited >file
	wait $session
	say "an edit from outside" "$(cat "$work/seen")"
fi
sleep 7654 &
say "signal outside" "exit $(status "kill -0 $!")"
kill $! 2>/dev/null
if command -v python3 >/dev/null; then
	mkfifo "$work/port"
	python3 -c 'import socket, time
s = socket.create_server(("127.0.0.1", 0))
print(s.getsockname()[1], file=open("'"$work/port"'", "w"))
time.sleep(600)' &
	listener=$!
	read -r port <"$work/port"
	connect="import socket; socket.create_connection(('127.0.0.1', $port), 5)"
	python3 -c "$connect" || say network "no listener outside"
	say network "exit $(status "python3 -c \"$connect\"")"
	kill $listener
fi
say "a namespace of one's own" "exit $(status 'unshare -U true')"
x --timeout 1s -- sleep 7655
say "timeout" "exit $?, $(gone 7655)"
x -- sh -c 'setsid sleep 7656 >/dev/null 2>&1 & sleep 0'
say "background processes after the session" "$(gone 7656)"
"$here/agentsh" exec -p "$policy" --degraded "$fallbacks" -- sh -c 'setsid sleep 7657 & sleep 7657' >/dev/null 2>&1 &
supervisor=$!
seconds=0
while [ $seconds -lt 120 ] && [ "$(running 7657)" -lt 2 ]; do
	sleep 1
	seconds=$((seconds + 1))
done
[ "$(running 7657)" -ge 2 ] || say "supervisor killed" "its commands did not start"
kill -9 $supervisor
say "supervisor killed" "$(gone 7657)"
"$here/agentsh" audit verify "$work/audit.jsonl" >/dev/null 2>>"$work/errors"
say "audit log" "exit $?"
say "losses in the first event" "$(head -1 "$work/audit.jsonl" | grep -o 'without [a-z_]* (' | sort -u | sed 's/without //; s/ (//' | tr '\n' ' ')"
cat "$work/errors" >&2
