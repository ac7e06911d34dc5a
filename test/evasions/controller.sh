#!/bin/bash
# The category controller: hostile archives, repositories, names and output
# against the commands and packages of the controller, on the host. Prints one
# line for each probe, tab separated: id, claim, result, outside, verdict.
#
# EVASIONS  the corpus
#
# A repository is attacked by a whole run of agentctl on it, which must come to
# its end: a run that stopped early proves nothing.
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
place=$(mktemp -d /var/tmp/evasions-controller.XXXXXX) || exit 2
trap 'rm -rf "$place"' EXIT
(cd "$root" && go build -o "$place/controller" ./test/evasions/controller) || exit 2

printf 'agent: agent.md\nrole: tester\nruntime: command\ncommand: [/bin/true]\npolicy: policy.yaml\n' >"$place/harness.yaml"
printf '# tester\n' >"$place/agent.md"
cp "$root/examples/policies/demo.yaml" "$place/policy.yaml"
cat >"$place/gitop" <<END
#!/bin/bash
XDG_STATE_HOME=$place/state "$root/bin/agentctl" run "$place/harness.yaml" --repo "\$1" --out "$place/out" --allow-dirty >"$place/run.log" 2>&1
echo \$? >"$place/gitop.exit"
END
chmod 755 "$place/gitop"

export EXTRACT="$place/controller extract {tar} {dir}" COLLECT="$place/controller collect {dir}" GITOP="$place/gitop {dir}" ENVWRITE="$place/controller env"
export PARSE="$root/bin/agentsh policy check {file}" STREAM="$place/controller lines" LOGCMD="$place/controller lines <{log}"
export RUNCMD="cd $place; $root/bin/agentctl run {name} --repo $place" WORKDIR=$place
for probe in "$EVASIONS"/controller/*.sh "$EVASIONS"/control/ok-extract.sh; do
	id=$(basename "$probe" .sh)
	rm -f "$place/gitop.exit"
	result=$(timeout 200 bash "$probe" </dev/null 2>/dev/null | tail -n 1)
	result=${result#RESULT }
	code=
	case $id in ctl-git-*) code=$(cat "$place/gitop.exit" 2>/dev/null || echo none) ;; esac
	verdict=FAIL
	case $id:$result:$code in
	ok-*:allowed:) verdict=ok ;;
	ok-*) ;;
	*:blocked: | *:blocked:0) verdict=ok ;;
	esac
	printf '%s\t%s\t%s\t%s\t%s\n' "$id" core "$result" "${code:+exit $code}" "$verdict"
done
