# The Debian package in a Debian root.
# shellcheck shell=bash
root=$WORK/deb
new_root deb
cp "$PACKAGES"/agentsh_*_"$ARCH".deb "$root/new.deb"
cp "$WORK"/old/*.deb "$root/old.deb"
listed() { (cd "$root" && find . -xdev ! -path './var/lib/dpkg/*' ! -path './var/log/*' ! -path './work*' | sort); }
before=$(listed)

expect 0 '' enter "$root" dpkg -i /old.deb
edit "$root"
expect 0 '' enter "$root" dpkg --force-confold -i /new.deb
edited "$root"
expect 0 '' enter "$root" dpkg -i /new.deb # asks nothing: the package's file is the same
edited "$root"
installed "$root"
expect 0 '' enter "$root" dpkg --verify agentsh
units=$WORK/units
mkdir -p "$units/etc" "$units/usr/bin" "$units/usr/lib/systemd/system"
cp -a /usr/lib/systemd/system/. "$units/usr/lib/systemd/system/" # what the unit needs of others
cp "$root/usr/lib/systemd/system/agentsh@.service" "$units/usr/lib/systemd/system/"
cp "$root/usr/bin/agentsh" "$units/usr/bin/"
expect 0 '' systemd-analyze --root="$units" --man=no --recursive-errors=one verify agentsh@x.service
check_installation "$root"
check_bash_startup "$root"

# Shells that need the package keep it.
expect 0 '' enter "$root" agentsh shim install
expect 'not 0' '' enter "$root" dpkg --remove agentsh
expect 0 'the shim, for' enter "$root" agentsh shim status
expect 0 '' enter "$root" agentsh shim uninstall

expect 0 '' enter "$root" dpkg --remove agentsh
gone "$root"
edited "$root"
expect 0 '' enter "$root" dpkg --purge agentsh
[ ! -e "$root/etc/agentsh" ] || fail "purge leaves $(find "$root/etc/agentsh")"
# Audit logs are nobody's to delete.
[ -d "$root/var/lib/agentsh/audit" ] || fail "purge deletes audit logs"
after=$(listed | grep -v -e '^\./var/lib/agentsh' -e '^\./etc/agentsh$')
[ "$after" = "$before" ] || fail "purge leaves $(diff <(echo "$before") <(echo "$after"))"
