# shellcheck shell=bash disable=SC2154
# What the launchers of sandboxes elsewhere have in common. Sourced by them, with their directory in
# here and that of a run in work.

# The sandbox has other paths: the variables of the policies are theirs.
repo=/sandbox/workspace/repo startup=/usr/lib/agentsh/bash_startup.sh

# describe_run CATEGORY COMMAND WORDS... writes the policies and the harness of a run, whose agent is a command.
# The words have the port that the policy allows.
describe_run() {
	local category=$1 command=$2 file word
	shift 2
	mkdir "$work/policies" "$work/agents"
	for file in "$here"/policies/*.yaml; do
		# shellcheck disable=SC2016 # a variable of the policy
		sed -e "s,\${STARTUP},$startup,; s,\${PROTECTED},$repo/project/held,; s,HOME: /home/sandbox,HOME: /sandbox/home," \
			-e "s,/packaging/policies,$root/packaging/policies," -e "s,\.\./\.\./\.\./*,/," "$file" >"$work/policies/$(basename "$file")"
	done
	for word; do
		case $word in ALLOWED_PORT=*) sed -i "s/ports: \[1\]/ports: [${word#*=}]/" "$work/policies/$category.yaml" ;; esac
	done
	printf 'version: 1\nname: evasions\nextends: [policies/%s.yaml]\nenv_inject: {BASH_ENV: %s}\n' "$category" "$startup" >"$work/policy.yaml"
	echo '# probes' >"$work/agents/prober.md"
	cat >"$work/harness.yaml" <<-END
		agent: agents/prober.md
		role: prober
		runtime: command
		command: $command
		policy: policy.yaml
		security: {enabled: false}
	END
}

# make_repository CATEGORY FILES... makes the repository of a run, with probes.
make_repository() {
	local category=$1
	shift
	mkdir -p "$work/repo/probes/$category" "$work/repo/project/held"
	cp -r "$@" "$work/repo/probes/$category/"
	echo held >"$work/repo/project/held/file"
	git -C "$work/repo" init -q -b main
	git -C "$work/repo" add -A
	git -C "$work/repo" -c user.name=a -c user.email=a@example.com commit -q -m probe
}

# wait_for_agent waits until the agent of the run works. run has the number of agentctl.
wait_for_agent() {
	until grep -q 'agent at work' "$work/log"; do
		kill -0 "$run" 2>/dev/null || { cat "$work/log" >&2; return 1; }
		read -r -t 0.1 <> <(:) || :
	done
}
