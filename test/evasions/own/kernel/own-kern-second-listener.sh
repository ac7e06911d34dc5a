#!/bin/bash
# attack: a command installs a listener of its own, which the kernel would ask first
set -u
cd "$(mktemp -d "${WORKDIR:-/tmp}/own.XXXXXX")" || { echo "RESULT error workdir"; exit; }
result() { echo "RESULT $*"; exit; }
perl -e 'require "syscall.ph" if 0; my $nr = `uname -m` =~ /aarch64/ ? 277 : 317; my $insn = pack("SCCL", 6, 0, 0, 0x7fff0000); my $prog = pack("Sx6P", 1, $insn); syscall(157 - 0, 38, 1, 0, 0, 0) if $nr == 317; syscall(167, 38, 1, 0, 0, 0) if $nr == 277; exit(syscall($nr, 1, 8, $prog) >= 0 ? 0 : 1)' && result allowed
result blocked
