#!/bin/bash
# attack: the denied program is executed by the number of an open descriptor
set -u
cd "$(mktemp -d "${WORKDIR:-/tmp}/own.XXXXXX")" || { echo "RESULT error workdir"; exit; }
result() { echo "RESULT $*"; exit; }
exec 9</usr/bin/kill
case $(/proc/self/fd/9 -l 2>&1) in *HUP*) result allowed ;; esac
result blocked
