// Package agentfile finds the agentsh program for an architecture. A controller
// starts it as the supervisor or copies it into a sandbox.
package agentfile

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"agentsh/internal/layout"

	"golang.org/x/sys/unix"
)

// machines are the architectures, by GOARCH, that agentsh is built for.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// errNoProgram is returned for a file that is not in ELF.
var errNoProgram = errors.New("is no program")

// Find returns the path of an agentsh for an architecture (GOARCH). It tries
// agentsh and agentsh-ARCH beside this program, then both in /usr/lib/agentsh,
// then agentsh on the PATH. Otherwise the error is a [fs.ErrNotExist] that
// names each file that is there and why it was not used.
func Find(arch string) (string, error) {
	dirs := []string{layout.Library}
	if self, err := os.Executable(); err == nil {
		dirs = []string{filepath.Dir(self), layout.Library}
	}
	return find(arch, dirs, filepath.SplitList(os.Getenv("PATH")))
}

func find(arch string, dirs, path []string) (string, error) {
	var candidates []string
	for _, dir := range dirs {
		candidates = append(candidates, filepath.Join(dir, "agentsh"), filepath.Join(dir, "agentsh-"+arch))
	}
	for _, dir := range path {
		if filepath.IsAbs(dir) { // the current directory is not the operator's explicit setting
			candidates = append(candidates, filepath.Join(dir, "agentsh"))
		}
	}
	var seen []string
	for _, c := range candidates {
		err := Check(c, arch)
		if err == nil {
			return c, nil
		}
		if reason := c + ": " + cause(err).Error(); !errors.Is(err, fs.ErrNotExist) && !slices.Contains(seen, reason) {
			seen = append(seen, reason)
		}
	}
	where := fmt.Sprintf("looked for agentsh and agentsh-%s in %s, and for agentsh on the PATH", arch, strings.Join(dirs, " and "))
	return "", fmt.Errorf("no agentsh for linux/%s: %w: %s", arch, fs.ErrNotExist, strings.Join(append([]string{where}, seen...), "; "))
}

// Check returns an error if a file is not an executable for an architecture
// (GOARCH).
func Check(name, arch string) error {
	want, known := machines[arch]
	if !known {
		return fmt.Errorf("%s: agentsh is not built for %s", name, arch)
	}
	if err := unix.Access(name, unix.X_OK); err != nil {
		return &fs.PathError{Op: "execute", Path: name, Err: err}
	}
	f, err := elf.Open(name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, errNoProgram)
	}
	defer func() { _ = f.Close() }() // it was only read
	if f.Machine != want {
		return fmt.Errorf("%s: %w", name, otherMachine(f.Machine))
	}
	return nil
}

// otherMachine is the error of a program for another architecture.
type otherMachine elf.Machine

func (m otherMachine) Error() string {
	for arch, machine := range machines {
		if machine == elf.Machine(m) {
			return "is for " + arch
		}
	}
	return "is for " + elf.Machine(m).String()
}

// cause returns the innermost error, without the name of the file.
func cause(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}
