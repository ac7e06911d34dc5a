#!/bin/sh
# The agent of the tests: its first iteration leaves no verdict.
set -eu
cd "$FULLSEND_TARGET_REPO_DIR"
echo two > a.txt
git -c user.name=a -c user.email=a@example.com commit -qam "the work of iteration $FULLSEND_ITERATION" || true
echo uncommitted > b.txt
env | sort > "$FULLSEND_OUTPUT_DIR/env"
cp "$FULLSEND_OUTPUT_SCHEMA" "$FULLSEND_OUTPUT_DIR/schema"
(curl --max-time 5 -sS https://elsewhere.example.com/ || true) > "$FULLSEND_OUTPUT_DIR/curl" 2>&1
if [ "$FULLSEND_ITERATION" = 1 ]; then
  echo '{}' > "$FULLSEND_OUTPUT_DIR/agent-result.json"
else
  echo '{"verdict": "fine"}' > "$FULLSEND_OUTPUT_DIR/agent-result.json"
fi
