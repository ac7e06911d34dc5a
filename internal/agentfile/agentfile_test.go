package agentfile

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// program writes the head of a program for a machine.
func program(t *testing.T, name string, machine elf.Machine) {
	t.Helper()
	h := elf.Header64{
		Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT), Ehsize: 64,
	}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA], h.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)
	var b bytes.Buffer
	if err := binary.Write(&b, binary.LittleEndian, h); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, b.Bytes(), 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestFind(t *testing.T) {
	type files map[string]elf.Machine
	tests := []struct {
		name, arch string
		files      files
		want       string
	}{
		{"beside the controller", "amd64", files{"bin/agentsh": elf.EM_X86_64, "lib/agentsh": elf.EM_X86_64}, "bin/agentsh"},
		{
			"of the sandbox's architecture, beside the controller",
			"arm64",
			files{"bin/agentsh": elf.EM_X86_64, "bin/agentsh-arm64": elf.EM_AARCH64},
			"bin/agentsh-arm64",
		},
		{
			"where it is installed for others",
			"arm64",
			files{"bin/agentsh": elf.EM_X86_64, "lib/agentsh-arm64": elf.EM_AARCH64},
			"lib/agentsh-arm64",
		},
		{"under the wrong name", "arm64", files{"bin/agentsh-arm64": elf.EM_X86_64, "lib/agentsh": elf.EM_AARCH64}, "lib/agentsh"},
		{"on the PATH, last", "amd64", files{"path/agentsh": elf.EM_X86_64, "lib/agentsh": elf.EM_AARCH64}, "path/agentsh"},
		{"nowhere", "amd64", files{"bin/agentsh": elf.EM_AARCH64}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, machine := range tt.files {
				program(t, filepath.Join(dir, name), machine)
			}
			got, err := find(tt.arch, []string{dir + "/bin", dir + "/lib"}, []string{".", dir + "/path"})
			if want := filepath.Join(dir, tt.want); tt.want != "" && (err != nil || got != want) {
				t.Errorf("found %s, %v; want %s", got, err, want)
			}
			if tt.want == "" && err == nil {
				t.Errorf("found %s", got)
			}
		})
	}
}

func TestNotFoundListsTheExistingNames(t *testing.T) {
	dir := t.TempDir()
	program(t, dir+"/bin/agentsh", elf.EM_AARCH64)
	program(t, dir+"/lib/agentsh", elf.EM_RISCV)
	if err := os.WriteFile(dir+"/lib/agentsh-amd64", []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	program(t, dir+"/path/agentsh", elf.EM_X86_64)
	if err := os.Chmod(dir+"/path/agentsh", 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := find("amd64", []string{dir + "/bin", dir + "/lib"}, []string{dir + "/path"})
	if !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("error %v", err)
	}
	if strings.Contains(err.Error(), "no such file") {
		t.Errorf("it lists what is not there: %v", err)
	}
	for _, want := range []string{
		"no agentsh for linux/amd64", dir + "/bin/agentsh: is for arm64", "agentsh-amd64 in " + dir + "/bin and " + dir + "/lib,",
		dir + "/lib/agentsh: is for EM_RISCV", dir + "/lib/agentsh-amd64: is no program", dir + "/path/agentsh: permission denied",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
}

func TestCheckOfANamedFile(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := Check(self, "riscv64"); err == nil {
		t.Error("an architecture that nothing is built for was accepted")
	}
	if err := Check("/no/agentsh", "amd64"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}
