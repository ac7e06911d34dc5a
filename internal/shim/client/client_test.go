package client_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestTheEntryPointNeedsNoLibrary compiles early.c. Whatever it called would run before the
// C library has started.
func TestTheEntryPointNeedsNoLibrary(t *testing.T) {
	for _, level := range []string{"-O0", "-O2", "-O3"} {
		object := filepath.Join(t.TempDir(), "early.o")
		compile := exec.Command("cc", level, "-std=gnu11", "-fno-stack-protector", "-c", "early.c", "-o", object)
		if out, err := compile.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		out, err := exec.Command("nm", "-u", object).Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range strings.Fields(strings.ReplaceAll(string(out), "U ", "")) {
			if name != "_start" && name != "_GLOBAL_OFFSET_TABLE_" {
				t.Errorf("%s: %s is needed", level, name)
			}
		}
	}
}
