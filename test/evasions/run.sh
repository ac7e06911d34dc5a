#!/bin/bash
# Run the corpus of bypasses under our own policies and print one table.
#
#   run.sh [category ...]      default: command args shell file net signal supervisor kernel env control controller
#
# EVASIONS  the corpus (default: shared/evasions beside the clone)
# RACE_N    tries of each probe that races (2000)
# ONLY      ids of the probes to run, with blanks between them; default: all
# KEEP      set: keep the directory with the probes' audit logs
# SHARE_NETWORK  set: sessions share the network of the machine
# DEGRADED  words of degraded, where the place needs them
# OWN       "no": without our own probes, which follow otherwise
# ENGINE    listener or trace: sessions have that engine; default: what agentsh chooses
# AS_USER   run the supervisor as this user, who owns what the probes aim at
# BESIDE    plain, listener or whole: each session is below that listener of test/outer/outer.c, and
#           beside.tsv says what differs. OUTER is that program, compiled
# PROBE_BIN_DIR  programs of the probes, where there is no compiler
# BACKEND   ssh: each probe runs in a sandbox of agentctl that is made over ssh, on this machine
#           vm: probes run in sandboxes in virtual machines, one for each category. EV_VM_IMAGE is their image
#           and PROBE_BIN_DIR has the programs. make vm-evasions does so
#
# A verdict is ok, "not held" (the attack worked, changed nothing outside, and
# not-held.tsv says why, or beside.tsv does and nothing else happened) or FAIL:
# everything else, a probe that could not judge and a control that did not work included. The exit status is 0 without a FAIL.
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
corpus=${EVASIONS:-$root/../shared/evasions}
if [ ! -x "$corpus/run-all.sh" ] || [ ! -r "$corpus/MANIFEST.tsv" ]; then
	echo "evasions: no corpus in $corpus: set EVASIONS to its directory" >&2
	exit 2
fi
[ "$(id -u)" = 0 ] || { echo "evasions: needs root: the outside is only out of reach when it could be reached" >&2; exit 2; }
[ -x "$root/bin/agentsh" ] || { echo "evasions: no $root/bin/agentsh: run 'make build'" >&2; exit 2; }
[ $# -gt 0 ] || set -- command args shell file net signal supervisor kernel env control controller

# The services that probes aim at have an address that is no loopback, in a
# network that ends with this run: the metadata address among them. A container
# that may not make one has its own already, and runs no probe of the network.
# One may not make any, but change its own: gVisor with CAP_NET_ADMIN.
if [ -z "${EV_NETWORK:-}" ] && ! unshare -n true 2>/dev/null && ip address add 198.51.100.77/32 dev lo 2>/dev/null; then
	ip address delete 198.51.100.77/32 dev lo
	EV_NETWORK=own
fi
if [ -z "${EV_NETWORK:-}" ] && { [[ " $* " == *" net "* ]] || unshare -n true 2>/dev/null; }; then
	EV_NETWORK=own exec unshare -n -- "$0" "$@"
fi
if [ "${EV_NETWORK:-}" = own ]; then
	ip link set lo up && ip address add 198.51.100.77/32 dev lo && ip address add 169.254.169.254/32 dev lo || exit 2
	export DENIED_HOST=198.51.100.77
fi

place=$(mktemp -d /var/tmp/evasions.XXXXXX) || exit 2
secret='' built=
end() {
	[ -n "$secret" ] && kill "$secret" 2>/dev/null
	[ -z "${EV_VM:-}" ] || for run in "$EV_VM"/*/run; do "$here/end-vm.sh" "$(dirname "$run")"; done
	[ "$built" != /opt/evasions-built ] || rm -rf "$built"
	if [ -n "${KEEP:-}" ]; then echo "evasions: logs are in $place" >&2; else rm -rf "$place"; fi
}
trap end EXIT
# without_namespaces tells whether sessions have none, and so hold whole trees alone.
without_namespaces() { [[ " ${DEGRADED:-} " == *[\ ,]nested_commands[\ ,]* ]]; }

chmod 755 "$place"
cp "$root/bin/agentsh" "$root/bash_startup.sh" "$place/"
cp -r "$here/policies" "$place/policies"
sed -i "s,\.\./\.\./\.\./packaging/policies,$root/packaging/policies," "$place/policies/args.yaml"
cp "$here/launch.sh" "$place/launch.sh"
# Without a file server nothing looks at repositories, and rules are about whole trees: the
# rules about commands are left.
commands_of() {
	printf 'version: 1\nname: %s-commands\nextends: [%s]\n' "$1" "$2"
	sed -n '/^command_rules:/,/^file_rules:/p' "$root/packaging/policies/$1.yaml" | sed '$d'
}
if [[ " ${DEGRADED:-} " == *[\ ,]file_server[\ ,]* ]]; then
	commands_of default base.yaml >"$place/policies/default-commands.yaml"
	commands_of agent-sandbox default-commands.yaml >"$place/policies/agent-commands.yaml"
	sed -i 's,^extends: .*agent-sandbox.*,extends: [agent-commands.yaml],' "$place/policies/args.yaml"
fi
without_namespaces && sed -i 's,^extends: .*agent-sandbox.*,extends: [base.yaml],' "$place/policies/args.yaml"
[ -z "${BESIDE:-}" ] || cp "${OUTER:-$root/out/outer}" "$place/outer"
export EV_OUTER=$place/outer EV_AGENTSH=$place/agentsh EV_CONFIG=$place/config.yaml EV_WORKSPACE EV_POLICY EV_AUDIT
# A sshd of its own, which an ssh program of its own starts: see ssh in internal/testenv.
place_of_ssh() {
	export EV_SSH=$place/ssh EV_ROOT=$root
	mkdir -p "$EV_SSH/bin" /run/sshd
	: >"$EV_SSH/held"
	ssh-keygen -q -t ed25519 -N '' -f "$EV_SSH/host" && ssh-keygen -q -t ed25519 -N '' -f "$EV_SSH/user" || exit 2
	echo "place $(cat "$EV_SSH/host.pub")" >"$EV_SSH/known_hosts"
	# What the environment policy must keep from commands is in the environment of the place.
	cat >"$EV_SSH/sshd_config" <<-END
		HostKey $EV_SSH/host
		AuthorizedKeysFile $EV_SSH/user.pub
		PermitRootLogin prohibit-password
		PasswordAuthentication no
		PidFile none
		StrictModes no
		UsePAM no
		SetEnv XDG_STATE_HOME=$EV_SSH/place HOME=$EV_SSH AWS_SECRET_ACCESS_KEY=corpus GH_TOKEN=ghp_corpus_x OPENAI_API_KEY=corpus SSH_AUTH_SOCK=/corpus
	END
	cat >"$EV_SSH/ssh_config" <<-END
		Host *
		HostKeyAlias place
		IdentityFile $EV_SSH/user
		IdentitiesOnly yes
		UserKnownHostsFile $EV_SSH/known_hosts
		StrictHostKeyChecking yes
		ProxyCommand /usr/sbin/sshd -i -f $EV_SSH/sshd_config
	END
	printf '#!/bin/sh\nexec /usr/bin/ssh -F %s "$@"\n' "$EV_SSH/ssh_config" >"$EV_SSH/bin/ssh"
	chmod 755 "$EV_SSH/bin/ssh"
}
launch=$place/launch.sh
if [ "${BACKEND:-}" = ssh ]; then
	place_of_ssh
	launch=$here/launch-ssh.sh OWN=no
elif [ "${BACKEND:-}" = vm ]; then
	export EV_VM=$place/vm EV_ROOT=$root
	mkdir -p "$EV_VM/.config/agentsh"
	printf 'version: 1\nvm: {driver: qemu, emulate: true}\n' >"$EV_VM/.config/agentsh/agentctl.yaml"
	: >"$EV_VM/held"
	launch=$here/launch-vm.sh OWN=no
fi

# A secret on the command line of a process outside, which no command may see.
bash -c 'exec -a "tool --token=ghp_corpus_secret_value" sleep 3600' &
secret=$!

# workspace makes the directory of one category; the probes are read there.
workspace() {
	EV_WORKSPACE=$place/$1/work
	mkdir -p "$EV_WORKSPACE/probes" "$EV_WORKSPACE/project/.git/hooks" "$place/$1/prepared" "$place/$1/outside" "$place/$1/tmp"
	mkdir "$EV_WORKSPACE/probes/$1"
	protected=$EV_WORKSPACE/project/.git/hooks
	if without_namespaces; then # a workspace is allowed as a whole
		protected=$place/$1/protected/.git/hooks
		mkdir -p "$protected"
	fi
	for probe in "$corpus/$1"/*; do
		id=$(basename "$probe" .sh)
		if [ "$(uname -m)" != x86_64 ] && [ -f "$probe" ] && grep -q '^# needs:.* x86-64' "$probe"; then
			echo "$id: for x86-64 alone"
			continue
		fi
		case " ${ONLY:-$id} " in *" $id "*) cp -r "$probe" "$EV_WORKSPACE/probes/$1/" ;; esac
	done
	# The service that this control reaches has an address of the network made above.
	[ "${EV_NETWORK:-}" = own ] || rm -f "$EV_WORKSPACE/probes/control/ok-connect-allowed.sh"
	printf 'version: 1\nvars: {STARTUP: "%s", PROTECTED: "%s"}\nsandbox: {env_inject: {BASH_ENV: "%s"}}\n' \
		"$place/bash_startup.sh" "$protected" "$place/bash_startup.sh" >"$EV_CONFIG"
	built=$EV_WORKSPACE/built
	[[ ${DEGRADED:-} != *mapped_files* ]] || built=/opt/evasions-built # programs do not start in the workspace
	if [ -n "${PROBE_BIN_DIR:-}" ]; then rm -rf "$built" && cp -r "$PROBE_BIN_DIR" "$built"; fi
	case ${ENGINE:-} in
	trace) echo 'forbid_engine: [listener]' >>"$EV_CONFIG" ;;
	listener) echo 'forbid_engine: [trace]' >>"$EV_CONFIG" ;;
	esac
	if [ -n "${DEGRADED:-}" ]; then
		echo "degraded: [$DEGRADED]" >>"$EV_CONFIG"
		[ "$DEGRADED" = call_rules ] || chown -R 60700:60700 "$EV_WORKSPACE" # no file server shows it as the commands' own
	fi
	[ -z "${AS_USER:-}" ] || chown -R "$AS_USER:$AS_USER" "$place/$1"
	EV_POLICY=$place/policies/$1.yaml
	EV_AUDIT=$place/$1/audit.jsonl
}

# supervisor_files prints the digests of the files that commands must not change.
supervisor_files() {
	sha256sum "$EV_POLICY" "$EV_CONFIG" "$place/bash_startup.sh" "$EV_AGENTSH" ${EV_SSH:+"$EV_SSH/held"} ${EV_VM:+"$EV_VM/held"} 2>&1
	find "${protected%/.git/hooks}" -exec stat -c '%n %s %a' {} +
}

extra() {
	local words=(WORKDIR="$EV_WORKSPACE" RACE_N="${RACE_N:-2000}" CONFIG_FILE="$EV_POLICY" STARTUP_FILE="$place/bash_startup.sh"
		AUDIT_LOG="$EV_AUDIT" CONTROL_SOCK=/run/agentsh/agentsh.sock SUP_CLI_CMD="$EV_AGENTSH")
	[ "$1" = file ] && words+=(PROTECTED="$protected")
	if [ -n "${BACKEND:-}" ]; then # the sandbox has paths of its own
		words+=(WORKDIR=/sandbox/workspace/repo STARTUP_FILE=/usr/lib/agentsh/bash_startup.sh)
		[ "$1" = file ] && words+=(PROTECTED=/sandbox/workspace/repo/project/held)
	fi
	if [ "${BACKEND:-}" = vm ]; then
		words+=(PROBE_BIN_DIR=/sandbox/workspace/repo/built)
	elif [ -n "${PROBE_BIN_DIR:-}" ]; then
		words+=(PROBE_BIN_DIR="$built")
	fi
	echo "${words[*]}"
}

# judge prints the verdict on one probe. A probe that could not judge has failed.
judge() {
	local known
	known=$(awk -F'\t' -v mode="${BESIDE:-}" -v id="$1" '$1 == mode && $2 == id { print $3 }' "$here/beside.tsv")
	if [ -n "$known" ]; then
		case ${2#*:} in "$known" | ${known%%:*}" "*":${known#*:}") echo "not held" ;; *) echo FAIL ;; esac
		return
	fi
	case $2 in
	must-work:allowed:*) echo ok ;;
	must-work:* | *:error*) echo FAIL ;;
	*:blocked:intact) if listed "$1"; then echo "ok, but listed"; else echo ok; fi ;;
	*:allowed:intact) if listed "$1"; then echo "not held"; else echo FAIL; fi ;;
	*) echo FAIL ;;
	esac
}

# A network that is shared holds what an own one need not.
listed() {
	[[ $1 != net-bind-privileged || $(uname -r) != *gvisor* ]] || return 0 # no port needs a capability there
	[[ $1 != sup-mem-bomb || ${DEGRADED:-} != *cgroup* ]] || return 0 # nothing limits memory
	[ "$1" != net-listen-any ] || [ -z "${SHARE_NETWORK:-}" ] || return 1
	cut -f1 "$here/not-held.tsv" | grep -qx "$1"
}

failed=0 open=0 total=0
printf '%-28s %-11s %-9s %-34s %-26s %s\n' id category claim result outside verdict
for category; do
	if [ "$category" = controller ]; then
		while IFS=$'\t' read -r id claim result outside verdict; do
			total=$((total + 1))
			[ "$verdict" = FAIL ] && failed=$((failed + 1))
			printf '%-28s %-11s %-9s %-34s %-26s %s\n' "$id" "$category" "$claim" "${result:0:34}" "$outside" "$verdict"
		done < <(EVASIONS=$corpus "$here/controller.sh")
		continue
	fi
	if [ ! -d "$corpus/$category" ] || [ ! -r "$here/policies/$category.yaml" ]; then
		echo "evasions: no category $category here" >&2
		exit 2
	fi
	workspace "$category"
	before=$(supervisor_files)
	while IFS=$'\t' read -r id _ result _ outside; do
		claim=$(awk -F'\t' -v id="$id" '$1 == id { print $4 }' "$corpus/MANIFEST.tsv")
		now=$(supervisor_files)
		[ "$now" = "$before" ] || outside=${outside#intact}+supervisor-files-changed
		before=$now
		verdict=$(judge "$id" "$claim:$result:$outside")
		total=$((total + 1))
		[ "$verdict" = FAIL ] && failed=$((failed + 1))
		[ "$verdict" = "not held" ] && open=$((open + 1))
		printf '%-28s %-11s %-9s %-34s %-26s %s\n' "$id" "$category" "$claim" "${result:0:34}" "$outside" "$verdict"
	done < <(LAUNCH=$launch PREPARED_DIR=$place/$category/prepared OUTSIDE=$place/$category/outside EXTRA=$(extra "$category") \
		"$corpus/run-all.sh" "$EV_WORKSPACE"/probes/"$category"/*.sh 2>/dev/null)
	[ ! -e "${EV_VM:-/nowhere}/$category/run" ] || "$here/end-vm.sh" "$EV_VM/$category" # one machine at a time
done
echo "$total probes, $failed failed, $open not held"
[ -n "${ONLY:-}" ] || [ "${OWN:-}" = no ] || [ "${BESIDE:-}" = whole ] || "$here/own.sh" || failed=$((failed + 1))
[ "$failed" = 0 ]
