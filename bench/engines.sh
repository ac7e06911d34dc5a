#!/bin/sh
# How long a sandbox in a container of Docker takes until its first command has ended, beside
# 'docker run IMAGE true' of the same image, in turn: promised is 1.5 times. Needs root, dockerd and an
# idle machine.
set -eu
cd "$(dirname "$0")/.."
AGENTSH_TEST_STRICT=1 AGENTSH_ENGINE_TIMES=1 "${GO:-go}" test -count=1 -v -run TestAContainerStartsSoon ./controller/sandbox/sandboxtest
