#!/bin/bash
# Run the suite of backends in virtual machines of qemu, each with a kernel of Debian and a root disk of
# Debian 12 that `agentctl image build` makes. Nothing needs hardware support.
#
#   run.sh KERNEL ...      5.10, 6.1, 6.12 or newest
#   run.sh KERNEL-vsock    streams are AF_VSOCK, by a Unix socket of Debian's vhost-device-vsock
#
# Kernel 5.10 has no Landlock. Its machines have degraded: [landlock].
# CACHE     kernels and the root file system, made when they are missing (/var/tmp/agentsh-places)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
export CACHE=${CACHE:-/var/tmp/agentsh-places}
[ "$(id -u)" = 0 ] || { echo "vm: needs root to make a root file system" >&2; exit 2; }
[ $# -gt 0 ] || { sed -n '2,/^set/p' "$0" | grep '^#' >&2; exit 2; }
mkdir -p "$CACHE"
work=$(mktemp -d /var/tmp/vm-run.XXXXXX)
trap 'rm -rf --one-file-system "$work"' EXIT

# shellcheck source=test/places/common.sh
. "$root/test/places/common.sh"
# shellcheck source=test/places/vm.sh
. "$root/test/places/vm.sh"

failed=0
for name; do
	kernel=${name%-vsock}
	case $kernel in
	5.10) suite=bullseye-security ;;
	6.1) suite=bookworm-security ;;
	6.12) suite=trixie ;;
	newest) suite=sid ;;
	*) echo "vm: no kernel $kernel: 5.10, 6.1, 6.12 or newest" >&2; exit 2 ;;
	esac
	files=$(fetch_kernel "$suite" amd64 linux-image-cloud-amd64)
	dir=$(demo_root)
	vmm=$(qemu x86_64)
	rm -rf "$work/image"
	"$root/bin/agentctl" image build "$dir" --kernel "$(echo "$files"/boot/vmlinuz-*)" --to "$work/image"
	tests='^TestAMachine$' variables=()
	if [ "$name" != "$kernel" ]; then
		tests='HybridSocket$'
		variables=(AGENTSH_VM_VSOCK="$(vhost_device_vsock)" AGENTSH_VM_AGENTCTL="$root/bin/agentctl")
	fi
	if [ "$kernel" = 5.10 ]; then
		printf 'version: 1\ndegraded: [landlock]\n' >"$work/config.yaml"
		variables+=(AGENTSH_VM_CONFIG="$work/config.yaml")
	fi
	if (cd "$root" && env PATH="$(dirname "$(command -v "$vmm")"):$PATH" AGENTSH_VM_IMAGE="$work/image" AGENTSH_TEST_STRICT=1 "${variables[@]}" \
		"${GO:-go}" test -count=1 -timeout 1h -v -run "$tests" ./controller/sandbox/vm); then
		echo "vm: $name ok"
	else
		echo "vm: $name FAIL"
		failed=1
	fi
done
exit "$failed"
