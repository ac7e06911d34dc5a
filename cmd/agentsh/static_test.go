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

// TestBothProgramsRunInAnEmptyRoot builds them as the Makefile does and starts
// them in a root that holds nothing else.
func TestBothProgramsRunInAnEmptyRoot(t *testing.T) {
	testenv.Need(t, testenv.Root)
	root := t.TempDir()
	builds := map[string][]string{
		"agentsh":  {"CGO_ENABLED=1", "-tags=netgo,osusergo", "-ldflags=-linkmode external -extldflags \"-static\"", "agentsh/cmd/agentsh"},
		"agentctl": {"CGO_ENABLED=0", "-trimpath", "-trimpath", "agentsh/cmd/agentctl"},
	}
	for name, how := range builds {
		path := filepath.Join(root, name)
		build := exec.Command("go", "build", how[1], how[2], "-o", path, how[3])
		build.Env = append(build.Environ(), how[0])
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", name, err, out)
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
