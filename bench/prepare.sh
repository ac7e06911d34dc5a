#!/bin/bash
# Make what the workloads work on: a repository of 16,000 files in 2,900
# directories, a file of 1 GiB, a Go program, two small C programs.
#
#   prepare.sh DIR
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
cd "$1"
gcc -O2 -o spawn "$here/../supervisor/notify/testdata/spawn.c"
gcc -O2 -o calls "$here/calls.c"
mkdir -p repo prog home
awk 'BEGIN {
	for (i = 0; i < 2900; i++) {
		dir = sprintf("repo/d%02d/e%02d/f%d", i % 20, int(i / 20) % 20, i)
		system("mkdir -p " dir)
		for (j = 0; j < 6 && i * 6 + j < 16000; j++) {
			file = dir "/g" j ".txt"
			for (k = 0; k < 20 + i % 200; k++) print "line " j " of file " i > file
			close(file)
		}
	}
}'
git -C repo init -q
git -C repo config gc.auto 0 # it would pack the objects while they are counted
git -C repo config maintenance.auto false
git -C repo add -A
git -C repo -c user.name=a -c user.email=a@b commit -qm all
head -c 1G /dev/zero >big
printf 'module prog\n\ngo 1.26\n' >prog/go.mod
printf 'package main\n\nimport (\n\t"encoding/json"\n\t"net/http"\n\t"os"\n)\n\nfunc main() { json.NewEncoder(os.Stdout).Encode(http.Header{"Stamp": {stamp}}) }\n' >prog/main.go
cp "$here/workload.sh" .
chmod -R a+rwX .
