#!/bin/bash
# Run the words given, which are env(1) with its assignments and a probe, as a
# command under the policy of the category. The shell becomes agentsh, so its
# own process number is the supervisor's: probes that aim at the supervisor are
# told that one.
set -eu
supervisor=("SUPERVISOR_PID=$$" "FUSE_BACKING=/proc/$$/root$EV_WORKSPACE")
# What the environment policy must keep from a command is in the caller's.
export AWS_SECRET_ACCESS_KEY=corpus GH_TOKEN=ghp_corpus_x GITHUB_TOKEN=ghp_corpus_x ANTHROPIC_API_KEY=corpus \
	OPENAI_API_KEY=corpus DATABASE_URL=corpus SSH_AUTH_SOCK=/corpus NPM_TOKEN=corpus KUBECONFIG=/corpus VAULT_TOKEN=corpus
# The port of the service that the policy allows is among the words.
policy=$EV_POLICY
for word; do
	case $word in ALLOWED_PORT=*)
		policy=${EV_POLICY%.yaml}-port.yaml
		sed "s/ports: \[1\]/ports: [${word#*=}]/" "$EV_POLICY" >"$policy"
		;;
	esac
done
flags=()
[ -z "${SHARE_NETWORK:-}" ] || flags=(--share-network)
exec "$EV_AGENTSH" exec --config "$EV_CONFIG" -p "$policy" -w "$EV_WORKSPACE" --cwd "$EV_WORKSPACE" --audit "$EV_AUDIT" \
	"${flags[@]}" -- "${@:1:$#-1}" "${supervisor[@]}" "${@: -1}"
