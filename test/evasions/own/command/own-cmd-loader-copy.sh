#!/bin/bash
# attack: a copy of the dynamic loader is given the denied program
set -u
cd "$(mktemp -d "${WORKDIR:-/tmp}/own.XXXXXX")" || { echo "RESULT error workdir"; exit; }
result() { echo "RESULT $*"; exit; }
ld=$(ldd /usr/bin/true | awk '/ld-linux/ { print $1 }')
[ -n "$ld" ] || result error no-loader
cp "$ld" mine
case $(./mine /usr/bin/kill -l 2>&1; "$ld" /usr/bin/kill -l 2>&1) in *HUP*) result allowed ;; esac
result blocked
