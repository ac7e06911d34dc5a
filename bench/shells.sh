#!/bin/bash
# The start of one shell, sh -c :, in an image: the original, and the shim whose shells
# share a session. They have a real-time priority where that is allowed, so that other work of
# the machine counts less.
#
#   shells.sh N
set -eu
here=$(cd "$(dirname "$0")" && pwd)
agentsh=$here/../bin/agentsh
dir=$(mktemp -d /var/tmp/agentsh-shells.XXXXXX)
root=$dir/root
trap 'rm -rf "$dir"' EXIT

mkdir -p "$root"/usr/{bin,lib,lib64} "$root"/{etc,proc,dev,tmp,run,work}
mkdir -p "$root/var/tmp"
chmod 1777 "$root/var/tmp"
for link in bin lib lib64; do ln -s "usr/$link" "$root/$link"; done
for program in bash dash; do
	cp "/usr/bin/$program" "$root/usr/bin/"
	for library in $(ldd "/usr/bin/$program" | grep -o '/[^ ]*'); do
		mkdir -p "$root/usr$(dirname "${library#/usr}")"
		cp -L "$library" "$root/usr${library#/usr}"
	done
done
ln -s dash "$root/usr/bin/sh"
cp "$agentsh" "$root/usr/bin/agentsh"
cat >"$dir/policy.yaml" <<'END'
version: 1
name: shells
command_rules: [{name: all, commands: ['*'], decision: allow}]
file_rules:
  - {name: work, paths: ['${WORKSPACE}', '${WORKSPACE}/**'], operations: ['*'], decision: allow}
  - {name: system, paths: ['/usr/**', '/bin/**', '/lib/**', '/lib64/**', '/etc', '/etc/**'], operations: [read, list, stat, execute], decision: allow}
END
"$agentsh" shim install --root "$root" --policy "$dir/policy.yaml" --workspace /work --session shared >/dev/null

cat >"$root/work/measure" <<'END'
cd /work
/bin/sh -c : # starts the session
for _ in $(seq "$1"); do
	for shell in dash sh; do
		began=${EPOCHREALTIME/./}
		"/bin/$shell" -c :
		echo "$shell $((${EPOCHREALTIME/./} - began))"
	done
done
agentsh session destroy shim >/dev/null
END
sed -i "s/\$(seq \"\$1\")/$(seq -s ' ' "$1")/" "$root/work/measure"

priority=()
! chrt -f 1 true 2>/dev/null || priority=(chrt -f 1)
# The original bash is no shim, so it measures outside of the session.
# shellcheck disable=SC2016 # the inner shell has the arguments
"${priority[@]}" unshare -m bash -c 'set -e
mount --make-rprivate /
mount --bind "$1" "$1"; mount -t proc proc "$1/proc"; mount --rbind /dev "$1/dev"
exec chroot "$1" /usr/lib/agentsh/shells/usr-bin-bash /work/measure' bash "$root" >"$dir/times" 2>"$dir/said" || { cat "$dir/said" >&2; exit 1; }

median() { awk -v who="$1" '$1 == who { print $2 }' "$dir/times" | sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] / 1e3 }'; }
awk -v native="$(median dash)" -v shim="$(median sh)" -v n="$1" 'BEGIN {
	printf "start of sh -c :, the original  %6.2f ms; in the shared session %6.2f ms, %.1f x (median of %d)\n", native, shim, shim / native, n
}'
