#!/bin/bash
# Install every package in a root of its own, use it, upgrade it and remove it, as
# root on Debian: test/install/run.sh PACKAGES BASE NFPM
#   PACKAGES  directory of "make packages"
#   BASE      tar of a Debian root with procps
#   NFPM      program that makes an older version of a package, to upgrade from
set -euo pipefail
PACKAGES=$(realpath "$1")
BASE=$(realpath "$2")
NFPM=$(realpath "$3")
HERE=$(realpath "$(dirname "$0")")
cd "$HERE/../.."
WORK=$(mktemp -d /var/tmp/agentsh-install-XXXXXX)
trap 'rm -rf --one-file-system "$WORK"' EXIT
CASE=preparation
case $(uname -m) in
x86_64) ARCH=amd64 ;;
aarch64) ARCH=arm64 ;;
*) fail "no packages for $(uname -m)" ;;
esac
export ARCH PACKAGES BASE HERE WORK CASE
# shellcheck source=test/install/lib.sh
. "$HERE/lib.sh"

# A version before the present one, whose configuration was another.
mkdir "$WORK/old"
{
	cat packaging/config.yaml
	echo "# as it was once"
} >"$WORK/old/config.yaml"
sed -e 's/^version: .*/version: 0.0.1/' -e "s|src: packaging/config.yaml|src: $WORK/old/config.yaml|" "$PACKAGES/programs/$ARCH/nfpm.yaml" >"$WORK/old/nfpm.yaml"
for format in deb rpm archlinux; do
	"$NFPM" package --config "$WORK/old/nfpm.yaml" --packager "$format" --target "$WORK/old/" >/dev/null
done

# edit ROOT: what an operator changes. edited ROOT: it is still there.
edit() { echo "# mine" >>"$1/etc/agentsh/config.yaml"; }
edited() { [ "$(tail -n 1 "$1/etc/agentsh/config.yaml")" = "# mine" ] || fail "the operator's configuration was changed: $(cat "$1/etc/agentsh/config.yaml")"; }

# one SCRIPT: a case, with its time.
one() {
	local start=$SECONDS
	CASE=$1
	# shellcheck source=/dev/null
	(. "$HERE/$1.sh")
	echo "install-test: $1: $((SECONDS - start)) s"
}
for name in deb rpm archlinux apk archive beneath arm64; do
	one "$name"
done
