#!/bin/sh
# Starts in the directory of the iteration.
set -eu
: "${FULLSEND_OUTPUT_SCHEMA:?}" "${FULLSEND_RUN_DIR:?}"
test -d output || { echo "FAIL: no output"; exit 1; }
test -f output/agent-result.json || { echo "FAIL: output/agent-result.json not found"; exit 1; }
grep -q '"type": "object"' "$FULLSEND_OUTPUT_SCHEMA"
grep -q '"verdict"' output/agent-result.json || { echo "FAIL: no verdict"; exit 1; }
test "$(cat "$TARGET_REPO_DIR/a.txt")" = two || { echo "FAIL: the work is not in TARGET_REPO_DIR"; exit 1; }
test -f "$FULLSEND_RUN_DIR/$(basename "$PWD")/output/agent-result.json"
