package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// built is the directory of what the tests of a package build; empty: they have not begun.
var built string

// directoryOf returns the directory of a program of this tree. The Makefile, and machines without Go, name one that has
// both; otherwise the program is built.
func directoryOf(name string, environ []string, flags ...string) func() (string, error) {
	return sync.OnceValues(func() (string, error) {
		dir := os.Getenv("AGENTSH_PROGRAMS")
		switch {
		case dir != "" && (built == "" || everyoneReaches(dir)):
			return dir, nil
		case dir != "":
			return built, copyProgram(filepath.Join(dir, name), filepath.Join(built, name))
		case built == "":
			return "", errors.New("testenv: the package has no TestMain that calls Main or Run")
		}
		args := append(append([]string{"build"}, flags...), "-o", filepath.Join(built, name), "agentsh/cmd/"+name)
		build := exec.CommandContext(context.Background(), "go", args...)
		build.Env = append(build.Environ(), environ...)
		if out, err := build.CombinedOutput(); err != nil {
			return "", fmt.Errorf("go build: %w\n%sAGENTSH_PROGRAMS names a directory that has the programs, such as bin after make build", err, out)
		}
		return built, nil
	})
}

// everyoneReaches reports whether other users, and other views of the files, have a directory: a checkout
// may be in the home of root, which tests of users cannot enter and doubles of machines replace.
func everyoneReaches(dir string) bool {
	for ; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil || info.Mode()&0o001 == 0 {
			return false
		}
		if dir == filepath.Dir(dir) {
			return true
		}
	}
}

func copyProgram(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o755)
}

// Both are static, as they are released: they start in the roots of images, too.
var (
	agentsh = directoryOf("agentsh", []string{"CGO_ENABLED=1"},
		"-tags", "netgo,osusergo", "-ldflags=-linkmode external -extldflags \"-static\"")
	agentctl = directoryOf("agentctl", []string{"CGO_ENABLED=0"}, "-trimpath", "-tags", "grpcnotrace")
)

// Run runs the tests of a package that use [Agentsh] or [Programs], and returns the exit code.
func Run(m interface{ Run() int }) int {
	DefaultSignals()
	var err error
	if built, err = os.MkdirTemp("", "agentsh-test-"); err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(built) }()
	return m.Run()
}

// Main is [Run], and ends the process.
func Main(m *testing.M) { os.Exit(Run(m)) }

// Agentsh returns the path of the static agentsh of this tree, which is built once in a process.
func Agentsh(t testing.TB) string {
	t.Helper()
	dir, err := agentsh()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "agentsh")
}

// Programs returns a directory with agentsh and agentctl of this tree, each built once in a process.
func Programs(t testing.TB) string {
	t.Helper()
	if _, err := agentsh(); err != nil {
		t.Fatal(err)
	}
	dir, err := agentctl()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
