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
		[ -n "${EV_BELOW:-}" ] || sed "s/ports: \[1\]/ports: [${word#*=}]/" "$EV_POLICY" >"$policy"
		;;
	esac
done
# Where the workspace's files cannot be mapped, none is executed either.
interpreter=()
[[ ${DEGRADED:-} != *mapped_files* ]] || interpreter=(/bin/bash)
flags=()
[ -z "${SHARE_NETWORK:-}" ] || flags=(--share-network)
start=()
if [ -n "${AS_USER:-}" ]; then
	# A user whose device of FUSE may be opened, as a distribution has it.
	export XDG_STATE_HOME=${EV_AUDIT%/*}/state XDG_RUNTIME_DIR=
	own='mount -t tmpfs none /mnt && mknod -m 666 /mnt/fuse c 10 229 && mount --bind /mnt/fuse /dev/fuse && umount -l /mnt && exec "$@"'
	start=(unshare -m sh -c "$own" sh setpriv --reuid "$AS_USER" --regid "$AS_USER" --clear-groups)
fi
# Without namespaces the files of a user's supervisor must lie where no command may write.
[[ " ${DEGRADED:-} " != *nested_commands* ]] || export TMPDIR=${EV_AUDIT%/*}/tmp XDG_STATE_HOME=${EV_AUDIT%/*}/state XDG_RUNTIME_DIR=
# The supervisor is below the listener of another one: test/outer/outer.c. A shell of its
# own below it knows the supervisor's number.
if [ -n "${BESIDE:-}" ] && [ -z "${EV_BELOW:-}" ]; then
	EV_BELOW=1 exec "${start[@]}" "$EV_OUTER" "$BESIDE" "$0" "$@"
fi
[ -z "${BESIDE:-}" ] || start=()
exec "${start[@]}" "$EV_AGENTSH" exec --config "$EV_CONFIG" -p "$policy" -w "$EV_WORKSPACE" --cwd "$EV_WORKSPACE" --audit "$EV_AUDIT" \
	"${flags[@]}" -- "${@:1:$#-1}" "${supervisor[@]}" "${interpreter[@]}" "${@: -1}"
