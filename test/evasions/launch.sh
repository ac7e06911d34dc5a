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
# A session has a network of its own; the control that needs the machine's is
# given it by the word an operator would use.
flags=()
case ${*: -1} in */ok-connect-allowed.sh) flags=(--share-network) ;; esac
exec "$EV_AGENTSH" exec --config "$EV_CONFIG" -p "$EV_POLICY" -w "$EV_WORKSPACE" --cwd "$EV_WORKSPACE" --audit "$EV_AUDIT" \
	"${flags[@]}" -- "${@:1:$#-1}" "${supervisor[@]}" "${@: -1}"
