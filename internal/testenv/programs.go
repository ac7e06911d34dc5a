package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// programs is the directory of what the tests of a package build; empty: nothing yet.
var programs string

// agentsh builds the static supervisor, unless a machine without Go has one.
var agentsh = sync.OnceValues(func() (string, error) {
	if program := os.Getenv("AGENTSH_PROGRAM"); program != "" {
		return program, nil
	}
	if programs == "" {
		return "", errors.New("testenv: the package has no TestMain that calls Main")
	}
	program := filepath.Join(programs, "agentsh")
	build := exec.Command("go", "build", "-tags", "netgo,osusergo", "-ldflags=-linkmode external -extldflags \"-static\"",
		"-o", program, "agentsh/cmd/agentsh")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return program, nil
})

// Main runs the tests of a package that use [Agentsh], and ends the process.
func Main(m *testing.M) {
	DefaultSignals()
	var err error
	if programs, err = os.MkdirTemp("", "agentsh-test-"); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(programs)
	os.Exit(code)
}

// Agentsh returns the path of the static agentsh of this tree, which it builds once in a process.
func Agentsh(t testing.TB) string {
	t.Helper()
	program, err := agentsh()
	if err != nil {
		t.Fatal(err)
	}
	return program
}
