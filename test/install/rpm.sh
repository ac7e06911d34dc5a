# The RPM package, by rpm into a root.
# shellcheck shell=bash
root=$WORK/rpm
new_root rpm
rpms() { rpm --root "$root" --nodeps "$@"; }
rpm --root "$root" --initdb
case $ARCH in
amd64) file=$(echo "$PACKAGES"/agentsh-*.x86_64.rpm) ;;
*) file=$(echo "$PACKAGES"/agentsh-*.aarch64.rpm) ;;
esac

expect 0 '' rpms -i "$WORK"/old/*.rpm
edit "$root"
expect 0 'config.yaml.rpmnew' rpms -U "$file"
edited "$root"
rm "$root/etc/agentsh/config.yaml.rpmnew"
installed "$root"
check_installation "$root"
check_bash_startup "$root"
expect 1 'c /etc/agentsh/config.yaml' rpms -V agentsh # and nothing else:
[ "$(rpms -V agentsh | wc -l)" = 1 ] || fail "rpm -V: $(rpms -V agentsh)"

expect 0 'config.yaml.rpmsave' rpms -e agentsh
rm "$root/etc/agentsh/config.yaml.rpmsave" && rmdir "$root/etc/agentsh"
gone "$root"
