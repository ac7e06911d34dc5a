#!/bin/bash
# How long a virtual machine of the backend vm takes from power on to the first command, emulated, and what of
# it is the kernel's and the session's. Needs root for the root file system, and an idle machine.
#
#   vm.sh [ROUNDS]      default: 5
#
# CACHE  kernels and the root file system, made when they are missing (/var/tmp/agentsh-places)
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
export CACHE=${CACHE:-/var/tmp/agentsh-places}
mkdir -p "$CACHE"
work=$(mktemp -d /var/tmp/vm-bench.XXXXXX)
trap 'rm -rf --one-file-system "$work"' EXIT

# shellcheck source=test/places/common.sh
. "$root/test/places/common.sh"
# shellcheck source=test/places/vm.sh
. "$root/test/places/vm.sh"

agentctl=$root/bin/agentctl
files=$(fetch_kernel trixie amd64 linux-image-cloud-amd64)
dir=$(demo_root)
vmm=$(qemu x86_64)
"$agentctl" image build "$dir" --kernel "$(echo "$files"/boot/vmlinuz-*)" --to "$work/image"
vmm=$(command -v "$vmm")
export PATH=${vmm%/*}:$PATH HOME=$work/home XDG_STATE_HOME=$work/state
mkdir -p "$HOME/.config/agentsh"
printf 'version: 1\nimages: {app: %s}\nvm: {driver: qemu, emulate: true}\n' "$work/image" >"$HOME/.config/agentsh/agentctl.yaml"
for _ in $(seq "${1:-5}"); do
	id=$("$agentctl" sandbox create --backend vm --image app --policy "$root/packaging/policies/dev-safe.yaml")
	read -r up _ < <("$agentctl" sandbox exec "$id" -- cat /proc/uptime)
	echo "first command at $up s, $(grep -ao 'listening at .*' "$work"/state/agentsh/machines/"$id"/console.log)"
	"$agentctl" sandbox delete "$id"
done
