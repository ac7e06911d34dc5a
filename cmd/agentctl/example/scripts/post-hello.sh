#!/bin/sh
# Runs on this machine after the agent, with env.runner in its environment.
set -eu
echo "the agent greeted $NAME in $EXPECTED"
