package vmimage

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// Format is the format of a kernel's file. Each VMM takes some of them.
type Format string

// Formats of kernels.
const (
	BzImage Format = "bzImage" // what distributions have in /boot, for amd64
	ELF     Format = "vmlinux" // uncompressed
	RawARM  Format = "Image"   // for arm64
)

// Kernel is a kernel of an operator.
type Kernel struct {
	File    string
	Format  Format
	Arch    string // GOARCH
	Release string // as uname -r prints it
}

// OpenKernel finds out what is in the file of a kernel.
func OpenKernel(file string) (Kernel, error) {
	k := Kernel{File: file}
	f, err := os.Open(file)
	if err != nil {
		return k, fmt.Errorf("kernel: %w", err)
	}
	defer f.Close()
	head := make([]byte, 0x300)
	if _, err := io.ReadFull(f, head); err != nil {
		return k, notKernel(file)
	}
	switch {
	case string(head[0x202:0x206]) == "HdrS": // Documentation/arch/x86/boot.rst
		k.Format, k.Arch = BzImage, "amd64"
		at := int64(binary.LittleEndian.Uint16(head[0x20e:])) + 0x200
		text := make([]byte, 256)
		n, _ := f.ReadAt(text, at) // a part is enough
		k.Release, _, _ = strings.Cut(string(text[:n]), " ")
	case string(head[0x38:0x3c]) == "ARM\x64": // Documentation/arch/arm64/booting.rst
		k.Format, k.Arch = RawARM, "arm64"
		k.Release, err = findRelease(f)
	case bytes.HasPrefix(head, []byte(elf.ELFMAG)):
		if k.Arch, err = elfArch(file); err == nil {
			k.Format = ELF
			k.Release, err = findRelease(f)
		}
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		return k, fmt.Errorf("kernel: %s is compressed: decompress it with gunzip", file)
	default:
		return k, notKernel(file)
	}
	if err == nil && !validRelease(k.Release) {
		err = notKernel(file)
	}
	return k, err
}

func notKernel(file string) error {
	return fmt.Errorf("kernel: %s is no kernel: name a bzImage such as /boot/vmlinuz-VERSION, a vmlinux, or an Image for arm64", file)
}

func elfArch(file string) (string, error) {
	f, err := elf.Open(file)
	if err != nil {
		return "", notKernel(file)
	}
	defer func() { _ = f.Close() }() // it was only read
	switch f.Machine {
	case elf.EM_X86_64:
		return "amd64", nil
	case elf.EM_AARCH64:
		return "arm64", nil
	}
	return "", fmt.Errorf("kernel: %s is for %s: this program knows amd64 and arm64", file, f.Machine)
}

// banner begins the text that an uncompressed kernel has of its version.
const banner = "Linux version "

// findRelease searches the release in an uncompressed kernel.
func findRelease(f io.ReaderAt) (string, error) {
	const window = 1 << 20
	buffer := make([]byte, window+256)
	for at := int64(0); ; at += window {
		n, err := f.ReadAt(buffer, at)
		for rest := buffer[:n]; ; {
			i := bytes.Index(rest, []byte(banner))
			if i < 0 {
				break
			}
			rest = rest[i+len(banner):]
			release, _, found := strings.Cut(string(rest[:min(len(rest), 128)]), " ")
			if found && validRelease(release) {
				return release, nil
			}
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("kernel: it does not say its version")
			}
			return "", err
		}
	}
}

// validRelease reports whether a text can be the release of a kernel.
func validRelease(s string) bool {
	if s == "" || s[0] < '0' || s[0] > '9' || !strings.Contains(s, ".") {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || r == '/' || r == '%' })
}
