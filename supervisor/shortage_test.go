package supervisor

import (
	"bytes"
	"context"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
)

// A command starts processes until the user may have no more. The session survives: it
// refuses further commands and says why, and works again when there is room.
func TestWithoutProcessesOneCommandIsRefused(t *testing.T) {
	if !asUser(t, "54017") {
		return // root has no limit
	}
	if err := unix.Setrlimit(unix.RLIMIT_NPROC, &unix.Rlimit{Cur: 400, Max: 400}); err != nil {
		t.Fatal(err)
	}
	b := openEither(t, true, opensPolicy, nil)
	in, feed := io.Pipe()
	out, said := io.Pipe()
	ended := make(chan wire.Exit, 1)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		exit, _, err := b.Exec(ctx, wire.ExecRequest{ID: "bomb", Argv: []string{"sh", "-c",
			"(while :; do sleep 1000 & done) 2>/dev/null; echo full; read line; echo $line; read line"}},
			wire.Streams{Stdin: in, Stdout: said, Stderr: io.Discard})
		if err != nil && ctx.Err() == nil {
			t.Error(err)
		}
		ended <- exit
	}()
	line := make([]byte, 5)
	if _, err := io.ReadFull(out, line); err != nil || string(line) != "full\n" {
		t.Fatalf("%q %v", line, err)
	}
	var all sync.WaitGroup
	var refused atomic.Int32
	for range 32 {
		all.Go(func() {
			var errs bytes.Buffer
			exit, _, err := b.Exec(context.Background(), wire.ExecRequest{Argv: []string{"true"}}, wire.Streams{Stderr: &errs})
			if err == nil && exit.ExitCode() == 0 {
				return // the end of the shell that could not fork left room for one
			}
			refused.Add(1)
			told := strings.Contains(exit.Message, "fork command: resource temporarily unavailable") && exit.Hint == processHint
			if err != nil || exit.ExitCode() != 125 || !told {
				t.Errorf("a command without processes: %+v %v %s", exit, err, &errs)
			}
		})
	}
	all.Wait()
	told := b.events(t, func(e wire.Event) bool { return e.Exit != nil && e.Exit.Hint == processHint })
	if n := int(refused.Load()); n == 0 || len(told) != n {
		t.Errorf("%d commands were refused, with %d events", n, len(told))
	}
	if _, err := feed.Write([]byte("on\n")); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadFull(out, line[:3]); err != nil || string(line[:3]) != "on\n" {
		t.Errorf("the command that took all: %q %v", line, err)
	}
	cancel() // ends all its processes
	<-ended
	b.answers(t)
}

// Commands wait for more locks than the file server may have threads. It refuses some of
// them and goes on: the Go runtime ends a program that gets no thread. Of 1,024 processes
// the commands get 768, so 200 threads fit beside however many the server has at work.
func TestWaitsForLocksLeaveThreadsToTheFileServer(t *testing.T) {
	if !asUser(t, "54018") {
		return // root has no limit
	}
	if err := unix.Setrlimit(unix.RLIMIT_NPROC, &unix.Rlimit{Cur: 1024, Max: 1024}); err != nil {
		t.Fatal(err)
	}
	b := openEither(t, true, opensPolicy, nil)
	var out, errs bytes.Buffer
	exit, _, err := b.Exec(context.Background(), wire.ExecRequest{Argv: []string{"python3", "-c", `
import errno, fcntl, os, queue, threading
open("locked", "w").close()
held, done = open("locked"), queue.Queue()
fcntl.flock(held, fcntl.LOCK_EX)
def wait():
    with open("locked") as f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX)
            done.put("granted")
        except OSError as e:
            done.put(errno.errorcode[e.errno])
threading.stack_size(1 << 17) # the least of arm64
for _ in range(200): threading.Thread(target=wait, daemon=True).start()
results = [done.get(timeout=60) for _ in range(72)]
fcntl.flock(held, fcntl.LOCK_UN)
results += [done.get(timeout=60) for _ in range(128)]
print(sorted((r, results.count(r)) for r in set(results)))
`}}, wire.Streams{Stdout: &out, Stderr: &errs})
	if err != nil || exit.ExitCode() != 0 || out.String() != "[('ENOLCK', 72), ('granted', 128)]\n" {
		t.Errorf("%+v %v: %s%s", exit, err, &out, &errs)
	}
	if told := b.events(t, func(e wire.Event) bool { return strings.Contains(e.Message, "128 locks are waited for") }); len(told) == 0 {
		t.Error("no event tells of it")
	}
	b.answers(t)
}
