package target

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
)

func TestTheRegistersAreThoseOfTheKernel(t *testing.T) {
	if size := unsafe.Sizeof(unix.PtraceRegs{}); regsSize != size || regsStackAt != stackInRegs {
		t.Errorf("%d bytes, the stack pointer at %d; want %d, %d", regsSize, regsStackAt, size, stackInRegs)
	}
}

// top is the end of the stack in memoryOf.
const top = 1 << 40

// memoryOf returns a file that is read and written as the memory of a program
// at its exec stop would be, and the stack pointer. The stack is as the kernel
// lays it out: strings on top, below them the vectors.
func memoryOf(t *testing.T, argv, env []string, auxv [][2]uint64) (*os.File, uint64) {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "memory")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	texts := strings.Join(append(slices.Clone(argv), env...), "\x00") + "\x00"
	at := uint64(top - len(texts))
	image := binary.NativeEndian.AppendUint64(nil, uint64(len(argv)))
	next := at
	for _, list := range [][]string{argv, env} {
		for _, text := range list {
			image = binary.NativeEndian.AppendUint64(image, next)
			next += uint64(len(text)) + 1
		}
		image = binary.NativeEndian.AppendUint64(image, 0)
	}
	for _, pair := range auxv {
		image = binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(image, pair[0]), pair[1])
	}
	sp := (at - uint64(len(image))) &^ 15
	for offset, data := range map[uint64][]byte{at: []byte(texts), sp: image} {
		if _, err := f.WriteAt(data, int64(offset)); err != nil {
			t.Fatal(err)
		}
	}
	return f, sp
}

// parsed reads the stack at sp.
func parsed(t *testing.T, f *os.File, sp uint64) *Stopped {
	t.Helper()
	s := &Stopped{mem: int(f.Fd()), sp: sp}
	if err := s.parse(); err != nil {
		t.Fatal(err)
	}
	return s
}

// A stack of every length of arguments and variables, and so of every alignment,
// is rebuilt to what the kernel would have made of the new environment.
func TestTheStackIsRebuilt(t *testing.T) {
	auxv := [][2]uint64{{33, 0xffff0000}, {51, 4720}, {16, 0x119fff}, {6, 4096}, {3, 0x400040}, {9, 0x400720}, {23, 0}, {25, top - 8}, {0, 0}}
	for n := range 40 {
		argv := []string{"program", strings.Repeat("a", n), ""}[:1+n%3]
		env := []string{"KEEP=" + strings.Repeat("k", n), "OLD=secret", "EMPTY=", "OLD=again"}[:1+n%4]
		entries := []string{"OLD=new" + strings.Repeat("v", n), "ADDED=a b"}
		f, before := memoryOf(t, argv, env, auxv)
		sp, err := parsed(t, f, before).rebuild(entries)
		if err != nil {
			t.Fatal(err)
		}
		if sp%16 != 0 || sp >= before {
			t.Errorf("the stack starts at %#x, before at %#x", sp, before)
		}
		s := parsed(t, f, sp)
		got, err := s.Env()
		want := append(slices.DeleteFunc(slices.Clone(env), func(e string) bool { return strings.HasPrefix(e, "OLD=") }), entries...)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("the environment is %q, %v, want %q", got, err, want)
		}
		if !slices.Equal(s.Args, argv) {
			t.Errorf("the arguments are %q, want %q", s.Args, argv)
		}
		var vectors []byte
		for _, pair := range auxv {
			vectors = binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(vectors, pair[0]), pair[1])
		}
		if !slices.Equal(s.vectors, vectors) {
			t.Errorf("the auxiliary vector is %x, want %x", s.vectors, vectors)
		}
		rest := make([]byte, top-before)
		if _, err := f.ReadAt(rest, int64(before)); err != nil || strings.Contains(string(rest), "secret") ||
			strings.Contains(string(rest), "again") {
			t.Errorf("a replaced value is still there, or %v", err)
		}
	}
}

// The same under emulation of the other architecture, which has no ptrace(2).
func TestTheStackIsRebuiltOnArm64(t *testing.T) {
	if runtime.GOARCH == "arm64" {
		return // the tests above are it
	}
	testenv.Need(t, testenv.Program("qemu-aarch64-static"), testenv.Program("go"))
	program := filepath.Join(t.TempDir(), "arm64.test")
	build := exec.Command("go", "test", "-c", "-o", program, ".")
	build.Env = append(os.Environ(), "GOARCH=arm64", "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build for arm64: %v\n%s", err, out)
	}
	out, err := exec.Command(
		"qemu-aarch64-static",
		program,
		"-test.v",
		"-test.run",
		"^(TestTheStackIsRebuilt|TestTheRegistersAreThoseOfTheKernel)$",
	).CombinedOutput()
	if err != nil || strings.Count(string(out), "--- PASS: ") != 2 {
		t.Errorf("%v\n%s", err, out)
	}
}
