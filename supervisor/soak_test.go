package supervisor

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
	"agentsh/policy"
)

// soak makes the tests of this file as large as "make soak" wants them.
var soak = flag.Bool("soak", false, "run the soak tests at full size")

func size(full, short int) int {
	if *soak {
		return full
	}
	return short
}

// holding is what a process holds at one moment.
type holding struct {
	fds, goroutines, files int
	memory                 int // KiB: heap in use of this process, resident memory of another
}

// mine is what this process holds, collected first. Files are those of the
// directory for temporary ones, which is the test's own.
func mine(t *testing.T) holding {
	t.Helper()
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	h := holding{fds: descriptors(t, os.Getpid()), goroutines: runtime.NumGoroutine(), memory: int(m.HeapInuse / 1024)}
	entries, err := os.ReadDir(os.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	h.files = len(entries)
	return h
}

func descriptors(t *testing.T, pid int) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// resident is what a child of this process holds: the session init or the file
// server.
func resident(t *testing.T, pid int) holding {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	h := holding{fds: descriptors(t, pid)}
	for line := range strings.Lines(string(status)) {
		if kib, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			h.memory, err = strconv.Atoi(strings.Fields(kib)[0])
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return h
}

// children are the processes this one started, oldest first.
func children(t *testing.T) []int {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, task := range tasks {
		text, err := os.ReadFile(filepath.Join("/proc/self/task", task.Name(), "children"))
		if err != nil {
			continue // the thread has ended
		}
		for _, f := range strings.Fields(string(text)) {
			pid, err := strconv.Atoi(f)
			if err != nil {
				t.Fatal(err)
			}
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			if err != nil || !bytes.Contains(status, []byte("\nTracerPid:\t0\n")) {
				continue // the bell of a thread that traces a command, which ends with it
			}
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// spare is how many more of each may be there than before: workers are started
// as they are needed, up to their bound, and kept.
const spare = 16

// more reports whether more resources are open than before, with a margin.
func (h holding) more(before holding) bool {
	return h.fds > before.fds+spare || h.goroutines > before.goroutines+spare || h.files > before.files
}

// waitReleased waits until no more resources are open than before. The last
// goroutines of a command end after its caller has the result.
func waitReleased(t *testing.T, want holding) holding {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		h := mine(t)
		if !h.more(want) || time.Now().After(deadline) {
			return h
		}
		runtime.Gosched()
	}
}

// work runs n commands by eight workers, each starting nested programs of its
// own.
func (b *box) work(t *testing.T, n, nested int) {
	t.Helper()
	var wg sync.WaitGroup
	next := make(chan int)
	loop := fmt.Sprintf("i=0; while [ $i -lt %d ]; do /bin/true || exit 1; i=$((i+1)); done", nested)
	for range 8 {
		wg.Go(func() {
			for i := range next {
				exit, tree, err := b.Exec(
					context.Background(),
					wire.ExecRequest{ID: strconv.Itoa(i), Argv: []string{"sh", "-c", loop}},
					wire.Streams{},
				)
				if err != nil || exit.ExitCode() != 0 || len(tree.Leftover) > 0 {
					t.Errorf("command %d: %+v, %+v, %v", i, exit, tree, err)
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}

func TestManyCommandsLeaveNothing(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	b := openBox(t, testPolicy)
	const nested = 9
	n := size(10_000, 40)
	b.work(t, max(n/10, 40), nested)
	kids := children(t)
	before := mine(t)
	var kidsBefore []holding
	for _, pid := range kids {
		kidsBefore = append(kidsBefore, resident(t, pid))
	}
	b.work(t, n, nested)
	after := waitReleased(t, before)
	t.Logf("%d execs: this process %+v, then %+v", n*(nested+1), before, after)
	if after.more(before) || after.memory > before.memory+2048 {
		t.Errorf("this process held %+v, after %d execs %+v", before, n*(nested+1), after)
	}
	for i, pid := range kids {
		h := resident(t, pid)
		t.Logf("child %d %+v, then %+v", pid, kidsBefore[i], h)
		if h.more(kidsBefore[i]) || h.memory > kidsBefore[i].memory+1024 {
			t.Errorf("child %d held %+v, then %+v", pid, kidsBefore[i], h)
		}
	}
}

// A session that is flooded with programs takes nothing from another one: all
// that runs there meanwhile succeeds, and nothing of it is denied or undecided.
func TestAFloodDeniesNothingInAnotherSession(t *testing.T) {
	calm, other := openBox(t, testPolicy), openBox(t, testPolicy)
	end := other.background(t, "sh", "-c", floods)
	calm.work(t, 100, 9)
	end()
	isExec := func(e wire.Event) bool { return e.Type == wire.EventExec }
	execs := calm.events(t, isExec)
	refused := calm.events(t, func(e wire.Event) bool { return e.Type == wire.EventFault || e.Decision == policy.Deny.String() })
	if len(execs) < 900 || len(refused) != 0 {
		t.Errorf("%d programs in the log, of 100 commands with 9 each; refused: %+v", len(execs), refused)
	}
	if flood := other.events(t, isExec); len(flood) == 0 {
		t.Error("there was no flood")
	}
}

// A session with thousands of live processes answers, knows them all, costs the
// supervisor at most 4 KiB for each, and ends them all.
func TestThousandsOfProcessesLiveInASession(t *testing.T) {
	b := openBox(t, testPolicy)
	n := size(10_000, 200)
	before := mine(t)
	script := fmt.Sprintf("i=0; while [ $i -lt %d ]; do tail -f /dev/null & i=$((i+1)); done; echo all; wait", n)
	end := b.background(t, "sh", "-c", script)
	b.answers(t)
	after := mine(t)
	t.Logf("heap %d KiB, with %d processes %d KiB", before.memory, n, after.memory)
	if after.memory > before.memory+4*n+2048 {
		t.Errorf("%d processes cost %d KiB", n, after.memory-before.memory)
	}
	if exit := end(); exit.Kind != wire.ExitSignaled {
		t.Errorf("exit %+v", exit)
	}
	if exit, out := b.run(t, "sh", "-c", "ls -d /proc/[0-9]* | wc -l"); exit.ExitCode() != 0 || strings.TrimSpace(out) > "9" ||
		len(strings.TrimSpace(out)) > 1 {
		t.Errorf("%+v: %s processes are left", exit, strings.TrimSpace(out))
	}
}

// storm starts programs while timers of 1 ms interrupt it, with handlers that
// restart calls, as those of Go programs do.
const storm = `
import signal, subprocess, sys
signal.signal(signal.SIGALRM, lambda *_: None)
signal.siginterrupt(signal.SIGALRM, False)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
for i in range(int(sys.argv[1])):
    if subprocess.call(["/bin/true"]) != 0: sys.exit("true failed")
    try: subprocess.call(["kill", "-0", "1"])
    except PermissionError: continue
    sys.exit("kill was started")
signal.setitimer(signal.ITIMER_REAL, 0)
print("done")
`

func TestAStormOfSignalsInterruptsNothing(t *testing.T) {
	testenv.Need(t, testenv.Program("python3"))
	b := openBox(t, testPolicy)
	n := strconv.Itoa(size(5_000, 50))
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			var out, errs bytes.Buffer
			exit, _, err := b.Exec(context.Background(), wire.ExecRequest{ID: "storm-" + strconv.Itoa(i), Argv: []string{"python3", "-c", storm, n}},
				wire.Streams{Stdout: &out, Stderr: &errs})
			if err != nil || exit.ExitCode() != 0 || out.String() != "done\n" {
				t.Errorf("%+v %v: %s%s", exit, err, &out, &errs)
			}
		})
	}
	wg.Wait()
}
