#!/bin/bash
# The first use of a tree in a new session, beside the same natively: time and processor time
# of both, and of a session that does nothing, which is subtracted. Everything is in memory.
# Where bindfs is installed, so is a new mount of it: a file server that judges nothing.
#
#   first.sh ROUNDS [find|status|tar|grep|build|vet ...]      default: all
#
# TREE     a repository with its work tree, such as a kernel's (a copy of the Go library, 12,000
#          files, in /var/tmp). A Go program for build and vet is made in it, and removed.
# PART     directories of it for tar and grep (src/cmd src/net src/crypto)
# AGENTSH  the programs to compare (bin/agentsh), separated by spaces
#
# The tree belongs to the user who runs this.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
read -ra programs <<<"${AGENTSH:-$here/../bin/agentsh}"
policy=$here/../packaging/policies/default.yaml
rounds=$1
shift
[ $# -gt 0 ] || set -- find status tar grep build vet
read -ra part <<<"${PART:-src/cmd src/net src/crypto}"

base=$(mktemp -d /var/tmp/agentsh-first.XXXXXX)
trap 'rm -rf "$base"' EXIT
cc -O2 -o "$base/cost" "$here/cost.c"
tree=${TREE:-}
if [ -z "$tree" ]; then
	tree=$base/tree
	mkdir "$tree"
	cp -r "$(go env GOROOT)/src" "$tree/src"
	git -C "$tree" init -q
	git -C "$tree" add -A
	git -C "$tree" -c user.name=a -c user.email=a@b -c gc.auto=0 commit -qm all
fi
mkdir "$base/scripts"
script() { printf '#!/bin/sh\ncd "%s" || exit\n%s\n' "$tree" "$2" >"$base/scripts/$1" && chmod +x "$base/scripts/$1"; }
script find 'exec find . >/dev/null'
script status 'exec git --no-optional-locks status >/dev/null'
script tar "tar cf - ${part[*]} | cat >/dev/null"
script grep "grep -r nothing-like-it ${part[*]} >/dev/null; exit 0"
go="export HOME=$tree/.first/home GOCACHE=$tree/.first/gocache GOPROXY=off GOTOOLCHAIN=local PATH=\$PATH:/usr/local/go/bin; cd .first/prog"
script build "$go; exec go build -o ../built ."
script vet "$go; exec go vet ."
script nothing 'exec /bin/true'
trap 'rm -rf "$base" "$tree/.first"' EXIT
if command -v bindfs >/dev/null; then
	cat >"$base/bindfs" <<-END
		#!/bin/sh
		exec unshare -m sh -c 'bindfs -f -o attr_timeout=600,entry_timeout=600 $tree $tree 2>/dev/null &
			until [ "\$(stat -f -c %t $tree)" = 65735546 ]; do :; done; "\$1"; umount $tree; wait' sh "\$1"
	END
	chmod +x "$base/bindfs"
fi
mkdir -p "$tree/.first/home" "$tree/.first/prog"
cp "$base/scripts/"* "$tree/.first/"
printf 'module prog\n\ngo 1.26\n' >"$tree/.first/prog/go.mod"
printf 'package main\n\nimport "net/http"\n\nfunc main() { http.Get("") }\n' >"$tree/.first/prog/main.go"

for name; do
	lines=("$tree/.first/$name")
	for program in "${programs[@]}"; do
		session="$program exec -p $policy -w $tree --cwd $tree --audit $base/audit -- $tree/.first"
		lines+=("$session/nothing" "$session/$name")
	done
	[ ! -e "$base/bindfs" ] || lines+=("$base/bindfs $tree/.first/nothing" "$base/bindfs $tree/.first/$name")
	"$tree/.first/$name" >/dev/null # natively warm
	echo "-- $name: natively, then for each program, and bindfs, without doing anything, and doing it"
	"$base/cost" "$rounds" "${lines[@]}"
done
