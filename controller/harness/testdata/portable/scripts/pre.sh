#!/bin/sh
# Runs on the host before the sandbox exists.
set -eu
: "${FULLSEND_FORGE:?}" "${API_TOKEN:?}"
test -f "$FULLSEND_DIR/harness/review.yaml"
test "$INHERITED" = github
