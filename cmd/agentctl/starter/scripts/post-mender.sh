#!/bin/sh
# Runs on this machine after the agent, with env.runner in its environment.
set -eu
echo "$REVIEWER: look at the branch ${AGENTSH_BRANCH:-(there is none)}"
