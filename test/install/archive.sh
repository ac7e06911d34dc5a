# The archive: in a root with nothing else, and as doc/install.md says on Debian.
#
# shellcheck shell=bash
file=$(echo "$PACKAGES"/agentsh_*_linux_"$ARCH".tar.gz)
root=$WORK/empty
mkdir -p "$root/opt/agentsh"
tar -xzf "$file" -C "$root/opt/agentsh"
[ -f "$root/opt/agentsh/bash_startup.sh" ] || fail "no bash_startup.sh in the root of the archive"
at=/opt/agentsh
# shellcheck disable=SC2013 # words, not lines
for name in $(sed -n 's/^COPY \(.*\) [^ ]*$/\1/p' "$root/opt/agentsh/docker/Dockerfile"); do
	[ -e "$root/opt/agentsh/$name" ] || fail "the archive has no $name, which its Dockerfile copies"
done
expect 0 '"program": "agentsh"' enter "$root" $at/agentsh version --json
expect 0 'A session can be opened here' enter "$root" $at/agentsh detect
expect 0 '"program": "agentctl"' enter "$root" $at/agentsh exec --policy $at/policies/default.yaml -- $at/agentctl version --json

# The commands of the page are what installs it.
root=$WORK/archive
new_root archive
mkdir "$root/unpacked"
tar -xzf "$file" -C "$root/unpacked"
sed -n '/^<!-- test: archive -->$/,/^<!-- end -->$/s/^    //p' doc/install.md >"$WORK/steps"
[ -s "$WORK/steps" ] || fail "doc/install.md has no steps for the archive"
expect 0 '' enter "$root" /bin/sh -euc "cd /unpacked; $(cat "$WORK/steps")"
installed_by_hand=$root/usr/local/bin/agentsh
[ -x "$installed_by_hand" ] || fail "the steps of doc/install.md install nothing"
check_installation "$root"
check_bash_startup "$root"
