#!/bin/bash
# attack: a program is written to a memory file and executed
set -u
cd "$(mktemp -d "${WORKDIR:-/tmp}/own.XXXXXX")" || { echo "RESULT error workdir"; exit; }
result() { echo "RESULT $*"; exit; }
perl -e 'my $nr = `uname -m` =~ /aarch64/ ? 279 : 319; my $n = "x"; my $fd = syscall($nr, $n, 0); exit 1 if $fd < 0; open(my $o, ">&=", $fd); open(my $i, "<", "/usr/bin/hostname"); binmode $_ for $o, $i; local $/; print $o scalar <$i>; $o->flush; exit system("/proc/$$/fd/$fd") >> 8' >/dev/null 2>&1 && result allowed
result blocked
