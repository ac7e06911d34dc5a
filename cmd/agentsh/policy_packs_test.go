package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const packs = "../../packaging/policies"

func TestPacksHoldWhatTheirTestsSay(t *testing.T) {
	dir, err := filepath.Abs(packs)
	if err != nil {
		t.Fatal(err)
	}
	out, code := agentsh(t, dir, "policy", "test", "--mutate", "--min", "100", ".")
	if code != 0 {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	for _, name := range []string{"default", "agent-sandbox", "agent-strict", "ci-strict", "dev-safe", "observe"} {
		if !strings.Contains(out, name+".yaml: coverage 100 %") || !strings.Contains(out, name+".yaml: ") {
			t.Errorf("%s was not tested:\n%s", name, out)
		}
	}
}

// TestPacksAreTestedOneByOne: a file without tests beside it would not be seen.
func TestPacksAreTestedOneByOne(t *testing.T) {
	files, err := filepath.Glob(packs + "/*.yaml")
	if err != nil || len(files) != 12 {
		t.Fatalf("%v, files are %q", err, files)
	}
	for _, f := range files {
		if stem, isTest := strings.CutSuffix(f, "_test.yaml"); !isTest && !slices.Contains(files, strings.TrimSuffix(f, ".yaml")+"_test.yaml") {
			t.Errorf("%s has no tests", stem)
		}
	}
}
