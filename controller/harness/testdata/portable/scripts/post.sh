#!/bin/sh
# Starts in the directory of the run, after the sandbox has ended.
set -eu
grep -q '"verdict"' "$FULLSEND_VALIDATED_ITERATION_DIR/agent-result.json"
found=
for dir in iteration-*/output; do
  test -f "$dir/agent-result.json" && found=$dir
done
test -n "$found"
test "$FULLSEND_RUN_DIR" = "$PWD"
git -C "$REPO_DIR" log --format=%s -1 > "$FULLSEND_VALIDATED_ITERATION_DIR/subject"
cat "$REPO_DIR/b.txt" >> "$FULLSEND_VALIDATED_ITERATION_DIR/subject"
printf '%s\n' "$API_TOKEN" | wc -c >> "$FULLSEND_VALIDATED_ITERATION_DIR/subject"
