package agentsh

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestNoTestIsLostBetweenTheListsOfTheMakefile holds that what the race detector skips runs without it.
func TestNoTestIsLostBetweenTheListsOfTheMakefile(t *testing.T) {
	data, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	list := func(name string) string {
		found := regexp.MustCompile(`(?m)^` + name + ` *:= (.*)$`).FindSubmatch(data)
		if found == nil {
			t.Fatalf("the Makefile has no %s", name)
		}
		return string(found[1])
	}
	var bulky strings.Builder
	for dir := range strings.FieldsSeq(list("BULKY")) {
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			bulky.Write(text)
		}
	}
	for test := range strings.SplitSeq(list("BULK"), "|") {
		if !strings.Contains(bulky.String(), "\nfunc "+test+"(t *testing.T)") {
			t.Errorf("%s is in no package of BULKY", test)
		}
	}
}
