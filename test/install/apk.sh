# The Alpine package, unpacked: busybox and musl are all that is in the root.
#
# shellcheck shell=bash
root=$WORK/apk
case $ARCH in
amd64) machine=x86_64 ;;
*) machine=aarch64 ;;
esac
file=$(echo "$PACKAGES"/agentsh_*_"$machine".apk)
mkdir -p "$root"/{bin,etc,lib,usr/bin,tmp}
cp /bin/busybox "$root/bin/busybox"
for applet in sh true false cat id env; do ln -s busybox "$root/bin/$applet"; done
printf 'root:x:0:0:root:/root:/bin/sh\n' >"$root/etc/passwd"
install -m 600 /dev/null "$root/etc/shadow"
cp "/lib/$machine-linux-musl/libc.so" "$root/lib/ld-musl-$machine.so.1"
musl-gcc -x c -o "$root/usr/bin/on-musl" - <<-'C'
	#include <stdio.h>
	int main(void) { return puts("on musl") < 0; }
C
cp /bin/true "$root/usr/bin/on-glibc"

tar --warning=no-unknown-keyword -tzf "$file" >"$WORK/apk.list"
for member in .PKGINFO .pre-deinstall usr/bin/agentsh etc/agentsh/config.yaml usr/lib/agentsh/bash_startup.sh; do
	grep -qx "$member" "$WORK/apk.list" || fail "the package has no $member"
done
tar --warning=no-unknown-keyword -xzf "$file" -C "$root"
grep -qx "arch = $machine" "$root/.PKGINFO" || fail "the package is for another machine: $(cat "$root/.PKGINFO")"
grep -qx 'pkgname = agentsh' "$root/.PKGINFO" || fail "the package has another name"

installed "$root"
expect 0 'on musl' enter "$root" on-musl
expect 'not 0' '' enter "$root" on-glibc # there is no glibc
check_installation "$root"
expect 0 'on musl' enter "$root" agentsh exec -- on-musl
expect 0 '' enter "$root" /.pre-deinstall
