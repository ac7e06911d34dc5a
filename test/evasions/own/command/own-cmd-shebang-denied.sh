#!/bin/bash
# attack: the denied program is the interpreter of a script
set -u
cd "$(mktemp -d "${WORKDIR:-/tmp}/own.XXXXXX")" || { echo "RESULT error workdir"; exit; }
result() { echo "RESULT $*"; exit; }
printf "#!/usr/bin/kill -V\n" >s; chmod 755 s
case $(./s 2>&1) in *"kill from"*) result allowed ;; esac
result blocked
