#!/bin/bash
# Run the suite of backends in virtual machines of qemu, each with a kernel of Debian and a root disk of
# Debian 12 that `agentctl image build` makes. Nothing needs hardware support.
#
#   run.sh KERNEL ...      6.1, 6.12 or newest
#
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
for kernel; do
	case $kernel in
	6.1) suite=bookworm-security ;;
	6.12) suite=trixie ;;
	newest) suite=sid ;;
	*) echo "vm: no kernel $kernel: 6.1, 6.12 or newest" >&2; exit 2 ;;
	esac
	files=$(fetch_kernel "$suite" amd64 linux-image-cloud-amd64)
	dir=$(demo_root)
	vmm=$(qemu x86_64)
	rm -rf "$work/image"
	"$root/bin/agentctl" image build "$dir" --kernel "$(echo "$files"/boot/vmlinuz-*)" --to "$work/image"
	if (cd "$root" && PATH="$(dirname "$(command -v "$vmm")"):$PATH" AGENTSH_VM_IMAGE="$work/image" AGENTSH_TEST_STRICT=1 \
		"${GO:-go}" test -count=1 -timeout 1h -v -run '^TestAMachine$' ./controller/sandbox/vm); then
		echo "vm: $kernel ok"
	else
		echo "vm: $kernel FAIL"
		failed=1
	fi
done
exit "$failed"
