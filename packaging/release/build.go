package main

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// sizeLimits are the greatest sizes of the stripped programs, in bytes.
var sizeLimits = map[string]int64{"agentsh": 20_000_000, "agentctl": 43_000_000}

// binary is one built program.
type binary struct {
	name, arch, path string
}

// compile builds the programs for the architectures that wanted accepts.
func (m *maker) compile(ctx context.Context, wanted func(arch string) bool) ([]binary, error) {
	var out []binary
	for _, b := range m.config.Builds {
		for _, arch := range b.Goarch {
			if !wanted(arch) {
				continue
			}
			one := binary{name: b.Binary, arch: arch, path: filepath.Join(m.out, "programs", arch, b.Binary)}
			if err := m.compileOne(ctx, b, one); err != nil {
				return nil, fmt.Errorf("build %s for %s: %w", b.ID, arch, err)
			}
			if err := one.check(); err != nil {
				return nil, fmt.Errorf("%s: %w", one.path, err)
			}
			out = append(out, one)
		}
	}
	return out, nil
}

func (m *maker) compileOne(ctx context.Context, b build, one binary) error {
	expanded := make([][]string, 3)
	for i, list := range [][]string{b.Env, b.Flags, b.Ldflags} {
		for _, text := range list {
			text, err := m.release.expand(text, one.arch)
			if err != nil {
				return err
			}
			expanded[i] = append(expanded[i], text)
		}
	}
	args := append([]string{"build"}, expanded[1]...)
	args = append(args, "-ldflags="+strings.Join(expanded[2], " "), "-o", one.path, b.Main)
	environment := append([]string{"GOOS=linux", "GOARCH=" + one.arch}, expanded[0]...)
	if err := m.run(ctx, environment, io.Discard, "go", args...); err != nil {
		return err
	}
	return os.Chtimes(one.path, m.release.time, m.release.time)
}

// run runs a program of the build in the tree.
func (m *maker) run(ctx context.Context, environment []string, out io.Writer, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), environment...)
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", name, args[0], err)
	}
	return nil
}

// check returns an error if a program is too large, or needs a library or a
// loader.
func (b binary) check() error {
	info, err := os.Stat(b.path)
	if err != nil {
		return err
	}
	if limit := sizeLimits[b.name]; info.Size() > limit {
		return fmt.Errorf("%d bytes, at most %d", info.Size(), limit)
	}
	f, err := elf.Open(b.path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	if f.Machine != machines[b.arch] {
		return fmt.Errorf("is for %v, not for %s", f.Machine, b.arch)
	}
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC }) {
		return errors.New("is not static")
	}
	if f.Section(".symtab") != nil {
		return errors.New("is not stripped")
	}
	return nil
}
