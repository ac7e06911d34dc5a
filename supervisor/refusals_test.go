package supervisor

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
)

// refused makes calls that sessions refuse, and some beside them that work.
const refused = `
import ctypes, errno, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(name, number, *args):
    args = [a if not isinstance(a, int) else ctypes.c_long(a) for a in args]
    r = libc.syscall(ctypes.c_long(number), *args)
    print(name, 'worked' if r >= 0 else errno.errorcode[ctypes.get_errno()], flush=True)
class vec(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('size', ctypes.c_size_t)]
text = ctypes.create_string_buffer(b'0123456789')
copy = ctypes.create_string_buffer(16)
here, there = vec(ctypes.addressof(copy), 10), vec(ctypes.addressof(text), 10)
limit = (ctypes.c_uint64 * 2)(0, 0)
me = os.getpid()
for again in range(2):
    call('ptrace', PTRACE, 0, 0, 0, 0)
    call('process_vm_readv of another', PROCESS_VM_READV, os.getppid(), ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    call('process_vm_readv', PROCESS_VM_READV, me, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    call('kcmp of another', KCMP, me, os.getppid(), 0, 1, 1)
    call('kcmp', KCMP, me, me, 0, 1, 2)
    call('mptcp', SOCKET, 2, 1, 262)
    call('udplite', SOCKET, 2, 2, 136)
    call('unshare', UNSHARE, 0x10000000)
    call('pidfd_getfd', PIDFD_GETFD, 3, 3, 0)
    call('read limits', PRLIMIT64, me, 7, None, ctypes.byref(limit))
    call('read limits of the parent', PRLIMIT64, os.getppid(), 7, None, ctypes.byref(limit))
    limit[0] = limit[1]
    call('set limits', PRLIMIT64, me, 7, ctypes.byref(limit), None)
    call('set limits of the parent', PRLIMIT64, os.getppid(), 7, ctypes.byref(limit), None)
    call('set limits of the init', PRLIMIT64, 1, 7, ctypes.byref(limit), None)
    call('affinity of the init', SCHED_SETAFFINITY, 2, 8, ctypes.byref(limit))
    call('personality', PERSONALITY, 0xffffffff)
    call('personality of randomisation', PERSONALITY, 0x40000)
    call('adjtimex', ADJTIMEX, ctypes.create_string_buffer(256))
    call('io_uring', IO_URING_SETUP, 1, 0)
    call('clone3', CLONE3, 0, 0)
print(copy.value.decode())
`

// callNumbers names the calls of this architecture for a script.
func callNumbers() string {
	var b strings.Builder
	for name, number := range map[string]int{
		"PTRACE": unix.SYS_PTRACE, "PROCESS_VM_READV": unix.SYS_PROCESS_VM_READV, "KCMP": unix.SYS_KCMP, "SOCKET": unix.SYS_SOCKET,
		"UNSHARE": unix.SYS_UNSHARE, "PIDFD_GETFD": unix.SYS_PIDFD_GETFD, "PRLIMIT64": unix.SYS_PRLIMIT64, "PERSONALITY": unix.SYS_PERSONALITY,
		"SCHED_SETAFFINITY": unix.SYS_SCHED_SETAFFINITY, "ADJTIMEX": unix.SYS_ADJTIMEX, "IO_URING_SETUP": unix.SYS_IO_URING_SETUP,
		"CLONE3": unix.SYS_CLONE3,
	} {
		fmt.Fprintf(&b, "%s = %d\n", name, number)
	}
	return b.String()
}

const refusedWant = `ptrace EPERM
process_vm_readv of another EPERM
process_vm_readv worked
kcmp of another EPERM
kcmp worked
mptcp EPERM
udplite EPERM
unshare EPERM
pidfd_getfd EPERM
read limits worked
read limits of the parent worked
set limits worked
set limits of the parent worked
set limits of the init EPERM
affinity of the init EPERM
personality worked
personality of randomisation EPERM
adjtimex worked
io_uring EPERM
clone3 ENOSYS
`

// TestARefusedCallIsReportedOnce for each kind and command, and what is harmless of it works.
func TestARefusedCallIsReportedOnce(t *testing.T) {
	testenv.Need(t, testenv.Program("python3"))
	b := openEither(t, asBoth(t), withSignals(signalRules), nil)
	if err := os.WriteFile(filepath.Join(b.workspace, "refused.py"), []byte(callNumbers()+refused), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, out := b.run(t, "sh", "-c", "python3 refused.py; true"); out != refusedWant+refusedWant+"0123456789\n" {
			t.Errorf("it printed:\n%s", out)
		}
	}
	var told []string
	for _, e := range b.events(t, func(e wire.Event) bool { return e.Type == wire.EventCall }) {
		if e.Decision != "deny" || e.Mechanism != "seccomp" || e.Command != t.Name() || e.Process == nil ||
			!strings.Contains(e.Process.Exe, "python") || !strings.HasPrefix(e.Message, "no session has it: ") || e.Hint == "" {
			t.Errorf("event %+v", e)
		}
		told = append(told, e.Op)
	}
	want := []string{"ptrace", "process_vm_readv", "kcmp", "socket", "socket", "unshare", "pidfd_getfd", "prlimit64", "sched_setaffinity",
		"personality"}
	if !slices.Equal(told, slices.Concat(want, want)) { // of two commands
		t.Errorf("told of %q", told)
	}
}

// TestAFloodOfRefusedCallsIsOneEvent, and other commands run meanwhile.
func TestAFloodOfRefusedCallsIsOneEvent(t *testing.T) {
	b := openBox(t, withSignals(signalRules))
	b.compiled(t, "flood", `
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/ptrace.h>
#include <unistd.h>
static void *run(void *x) {
	long bad = 0;
	for (int i = 0; i < 25000; i++)
		bad += ptrace(PTRACE_ATTACH, 77, 0, 0) != -1 || errno != EPERM;
	*(long *)x = bad;
	return x;
}
int main(void) {
	pthread_t t[4];
	long bad[4], all = 0;
	for (int i = 0; i < 4; i++) pthread_create(&t[i], 0, run, &bad[i]);
	for (int i = 0; i < 4; i++) { pthread_join(t[i], 0); all += bad[i]; }
	printf("%ld went otherwise\n", all);
}
`)
	var out bytes.Buffer
	done := make(chan error, 1)
	go func() {
		_, _, err := b.Exec(
			context.Background(),
			wire.ExecRequest{ID: "flood", Argv: []string{"./flood"}},
			wire.Streams{Stdout: &out, Stderr: io.Discard},
		)
		done <- err
	}()
	for range 20 {
		if _, out := b.run(t, "echo", "on"); out != "on\n" {
			t.Errorf("beside the flood: %q", out)
		}
	}
	if err := <-done; err != nil || out.String() != "0 went otherwise\n" {
		t.Errorf("it printed %q, %v", out.String(), err)
	}
	if told := b.events(t, func(e wire.Event) bool { return e.Type == wire.EventCall || e.Type == wire.EventFault }); len(told) != 1 ||
		told[0].Op != "ptrace" {
		t.Errorf("events %+v", told)
	}
}
