#!/bin/bash
# Run the corpus of bypasses in sandboxes of the backend vm, emulated, with Debian's kernel 6.12. There is a
# machine for each category.
#
#   evasions.sh [category ...]      default: command args shell file net signal supervisor kernel env control
#
# EVASIONS  the corpus; ONLY, RACE_N (20), KEEP: see test/evasions/run.sh
# CACHE     the kernel and the root file system, made when they are missing (/var/tmp/agentsh-places)
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
export CACHE=${CACHE:-/var/tmp/agentsh-places}
corpus=${EVASIONS:-$root/../shared/evasions}
[ "$(id -u)" = 0 ] || { echo "vm: needs root to make a root file system" >&2; exit 2; }
[ $# -gt 0 ] || set -- command args shell file net signal supervisor kernel env control
mkdir -p "$CACHE"
work=$(mktemp -d /var/tmp/vm-evasions.XXXXXX)
trap 'rm -rf --one-file-system "$work"' EXIT

# shellcheck source=test/places/common.sh
. "$root/test/places/common.sh"
# shellcheck source=test/places/vm.sh
. "$root/test/places/vm.sh"

files=$(fetch_kernel trixie amd64 linux-image-cloud-amd64)
dir=$(debian_root amd64 probes gcc,libc6-dev,nodejs)
vmm=$(qemu x86_64)
"$root/bin/agentctl" image build "$dir" --kernel "$(echo "$files"/boot/vmlinuz-*)" --to "$work/image"
build_probes "$work/built"
PATH="$(dirname "$(command -v "$vmm")"):$PATH" BACKEND=vm EV_VM_IMAGE=$work/image PROBE_BIN_DIR=$work/built RACE_N=${RACE_N:-20} \
	EVASIONS=$corpus "$root/test/evasions/run.sh" "$@"
