# A place that confines its sandboxes itself (doc/platforms/openshell.md), and one
# that starts nothing but sh -c with an empty environment (blaxel.md).
# shellcheck shell=bash
root=$WORK/beneath
new_root beneath
cp "$PACKAGES"/agentsh_*_"$ARCH".deb "$root/new.deb"
expect 0 '' enter "$root" dpkg -i /new.deb
gcc -static -O2 -Wall -Werror -o "$root/usr/bin/beneath" "$HERE/beneath.c"
mkdir -p "$root/sandbox/workspace"
chown -R 1000:1000 "$root/sandbox"
block_kill "$root" plain
# shellcheck disable=SC2016 # the inner shell expands it
text='kill -0 $$'

plain=(/usr/bin/env HOME=/sandbox agentsh exec --degraded namespaces --workspace /sandbox/workspace --policy /etc/agentsh/block-kill.yaml)
expect 1 'opens a session' enter "$root" beneath /usr/bin/env HOME=/sandbox agentsh detect
expect 125 'degraded: [namespaces]' enter "$root" beneath /usr/bin/env HOME=/sandbox agentsh exec --workspace /sandbox/workspace -- true
expect 0 '' enter "$root" beneath "${plain[@]}" -- true
expect 0 'function' enter "$root" beneath "${plain[@]}" -- bash -c 'type -t kill'
expect 'not 0' 'rule block-kill' enter "$root" beneath "${plain[@]}" -- bash -c "$text"
expect 0 '' enter "$root" beneath "${plain[@]}" -- bash -c 'echo ours >new'
expect 'not 0' '' enter "$root" beneath "${plain[@]}" -- cat /etc/shadow

block_kill "$root" default
# The shell is the only way in, and brings no variables.
sed -i 's|^policy: .*|policy: /etc/agentsh/block-kill.yaml|' "$root/etc/agentsh/config.yaml"
expect 0 'the shim, for' enter "$root" agentsh shim install
expect 0 'function' enter "$root" /usr/bin/env -i /bin/sh -c "bash -c 'type -t kill'"
expect 'not 0' 'rule block-kill' enter "$root" /usr/bin/env -i /bin/sh -c "bash -c '$text'"
expect 'not 0' 'rule block-kill' enter "$root" /usr/bin/env -i /bin/sh -c '/bin/kill -0 1'
expect 'not 0' '' enter "$root" /usr/bin/env -i /bin/sh -c "bash -c 'enable -a | grep -w kill'"
expect 0 '' enter "$root" agentsh shim uninstall
