package main

import (
	"debug/elf"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"agentsh/internal/testenv"
)

// TestBothProgramsRunInAnEmptyRoot starts them in a root that holds nothing else.
func TestBothProgramsRunInAnEmptyRoot(t *testing.T) {
	testenv.Need(t, testenv.Root)
	root, programs := t.TempDir(), testenv.Programs(t)
	for _, name := range []string{"agentsh", "agentctl"} {
		path := filepath.Join(root, name)
		if out, err := exec.Command("cp", filepath.Join(programs, name), path).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		f, err := elf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		libraries, err := f.ImportedLibraries()
		if err != nil || len(libraries) > 0 || f.Section(".interp") != nil {
			t.Errorf("%s needs %v, %v", name, libraries, err)
		}
		f.Close()
		run := exec.Command("/"+name, "--version")
		run.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
		run.Env, run.Dir = []string{}, "/"
		out, err := run.CombinedOutput()
		if err != nil || !strings.HasPrefix(string(out), name+" version") {
			t.Errorf("%s in an empty root: %v\n%s", name, err, out)
		}
	}
}
