#!/bin/sh
# Copy this tree, without what builds leave, into an empty directory: copy.sh DIR
set -eu
tar --exclude=./.git --exclude=./.tools --exclude=./bin --exclude=./dist --exclude=./out -cf - . | tar --no-same-permissions --no-same-owner -xf - -C "$1"
