# What the programs for arm64 show under user-mode emulation, which has neither
# notification nor namespaces of its own.
# shellcheck shell=bash
programs=$PACKAGES/programs/arm64
emulated() {
	local program=$1
	shift
	qemu-aarch64-static "$programs/$program" "$@"
}
if [ "$ARCH" = arm64 ]; then
	emulated() { "$programs/$1" "${@:2}"; }
fi
expect 0 '"arch": "arm64"' emulated agentsh version --json
expect 0 '"arch": "arm64"' emulated agentctl version --json
expect 0 '' emulated agentsh policy check packaging/policies/default.yaml packaging/policies/agent-strict.yaml
expect 0 'BASH_ENV' emulated agentsh env explain --policy packaging/policies/default.yaml
expect 1 'block-privileges' emulated agentsh policy explain --policy packaging/policies/default.yaml -- sudo id
expect 0 'AGENTSH-EXEC' emulated agentsh man exec
expect 0 'agentctl' emulated agentctl completion bash
mkdir "$WORK/arm64"
expect 0 '' emulated agentctl init "$WORK/arm64/agent"
expect 0 '' emulated agentctl lint "$WORK/arm64/agent/harness/hello.yaml"
