#!/bin/bash
# attack: the memory and the root of process 1 are opened
set -u
cd "$(mktemp -d "${WORKDIR:-/tmp}/own.XXXXXX")" || { echo "RESULT error workdir"; exit; }
result() { echo "RESULT $*"; exit; }
for f in /proc/1/mem /proc/1/environ /proc/1/maps; do head -c 1 "$f" >/dev/null 2>&1 && result allowed; done
ls /proc/1/root/ >/dev/null 2>&1 && result allowed
set -- /proc/1/fd/*
[ "$1" = "/proc/1/fd/*" ] || result allowed
result blocked
