#!/bin/bash
# Run every fuzz target of the module for a time: fuzz.sh 30s
#
# A target that fails leaves its input in testdata/fuzz beside the test; it is
# committed with the change that mends it, and runs with every test from then on.
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-30s}
failed=
while IFS=: read -r file target; do
	echo "=== $target ($(dirname "$file"), $time)"
	"${GO:-go}" test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "./$(dirname "$file")" || failed="$failed $target"
done < <(git ls-files '*_test.go' | xargs grep -o '^func Fuzz[A-Za-z0-9]*' | sed 's/func //')
[ -z "$failed" ] || { echo "fuzz: failed:$failed" >&2; exit 1; }
