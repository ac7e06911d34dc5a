#!/bin/bash
# attack: code is loaded as a library from where commands may write
set -u
cd "$(mktemp -d "${WORKDIR:-/tmp}/own.XXXXXX")" || { echo "RESULT error workdir"; exit; }
result() { echo "RESULT $*"; exit; }
lib=$(ldd /usr/bin/perl | awk '/libm\.so/ { print $3; exit }')
[ -n "$lib" ] || result error no-library
cp "$lib" evil.so
perl -MDynaLoader -e 'exit(DynaLoader::dl_load_file($ARGV[0], 0) ? 0 : 1)' "$PWD/evil.so" && result allowed
result blocked
