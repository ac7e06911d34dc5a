package seccomp

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	scmp "github.com/seccomp/libseccomp-golang"
	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
)

// proof is an errno that no refused call gives by itself: who sees it was
// refused by the filter and not by the kernel behind it.
const proof = unix.EHWPOISON

// victimPlan is the whole plan with every errno replaced by proof, and nobody to
// notify.
func victimPlan() Plan {
	p := everything()
	p.Notified = nil
	for i := range p.Refused {
		p.Refused[i].Errno = proof
	}
	return p
}

// example is an argument vector for which a case holds.
func (c Case) example() (args [6]uintptr) {
	for _, one := range c {
		switch one.Op {
		case Is32, Is, HasBits:
			args[one.Arg] = uintptr(one.Value)
		case Not, Above:
			args[one.Arg] = uintptr(one.Value + 1)
		case Masked:
			args[one.Arg] = uintptr(uint32(one.Value))
		case NoBits:
			args[one.Arg] = 0
		}
	}
	return args
}

func TestMain(m *testing.M) {
	switch os.Getenv("SECCOMP_VICTIM") {
	case "refusals":
		os.Exit(victim())
	case "x32":
		loadVictim()
		unix.RawSyscall(x32Bit+unix.SYS_GETPID, 0, 0, 0)
		os.Exit(0)
	case "exec":
		loadVictim()
		fmt.Fprintln(os.Stderr, syscall.Exec(os.Args[1], os.Args[1:], nil))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func loadVictim() {
	program, err := victimPlan().Compile(runtime.GOARCH)
	if err != nil {
		panic(err)
	}
	prog := struct {
		n    uint16
		code *byte
	}{uint16(len(program) / sizeofInsn), &program[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		panic(err)
	}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		panic(errno)
	}
}

// victim makes every refused call and counts those that the filter let pass.
func victim() int {
	loadVictim()
	tried, passed := 0, 0
	for _, r := range victimPlan().Refused {
		for _, name := range r.Syscalls {
			nr, known := shared[name]
			if !known {
				call, err := scmp.GetSyscallFromName(name)
				if err != nil || call < 0 {
					continue
				}
				nr = uint32(call)
			}
			cases := r.When
			if len(cases) == 0 {
				cases = []Case{nil}
			}
			for _, c := range cases {
				a := c.example()
				_, _, errno := unix.RawSyscall6(uintptr(nr), a[0], a[1], a[2], a[3], a[4], a[5])
				tried++
				if errno != proof {
					fmt.Fprintf(os.Stdout, "%s %#x: %v\n", name, a, errno)
					passed++
				}
			}
		}
	}
	fmt.Fprintf(os.Stdout, "tried %d\n", tried)
	return passed
}

func runVictim(role string, args ...string) ([]byte, *os.ProcessState, error) {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), "SECCOMP_VICTIM="+role)
	out, err := cmd.CombinedOutput()
	return out, cmd.ProcessState, err
}

func TestTheKernelRefusesWhatThePlanRefuses(t *testing.T) {
	testenv.Need(t, testenv.UserNotif)
	out, _, err := runVictim("refusals")
	if err != nil || !strings.Contains(string(out), "tried ") {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}

func TestForeignCallsKillTheProcess(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		return // arm64 has the one architecture in 64-bit programs
	}
	testenv.Need(t, testenv.UserNotif, testenv.Program("gcc"))
	died := func(what string, out []byte, state *os.ProcessState) {
		if status := state.Sys().(syscall.WaitStatus); !status.Signaled() || status.Signal() != unix.SIGSYS {
			t.Errorf("%s: %v, not killed by SIGSYS\n%s", what, state, out)
		}
	}
	out, state, _ := runVictim("x32")
	died("x32 getpid", out, state)

	source, program := filepath.Join(t.TempDir(), "i386.c"), filepath.Join(t.TempDir(), "i386")
	text := `int main(void) { long r; __asm__ volatile("int $0x80" : "=a"(r) : "a"(20)); return 0; }`
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-o", program, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := exec.Command(program).CombinedOutput(); err != nil {
		if status, ok := errors.AsType[*exec.ExitError](err); ok && status.Sys().(syscall.WaitStatus).Signal() == unix.SIGSEGV {
			t.Log("the kernel has no calls of 32 bits (ia32_emulation=0): nothing to refuse")
			return
		}
		t.Fatalf("without a filter: %v\n%s", err, out)
	}
	out, state, _ = runVictim("exec", program)
	died("getpid by int 0x80", out, state)
}
