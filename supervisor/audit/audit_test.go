package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
)

func open(t *testing.T, dir string, opts Options) *Log {
	t.Helper()
	opts.KeyFile = filepath.Join(dir, "key")
	l, err := Open(filepath.Join(dir, "log"), opts)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func shut(t *testing.T, l *Log) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func add(t *testing.T, l *Log, events ...wire.Event) {
	t.Helper()
	for _, e := range events {
		if err := l.Append(e); err != nil {
			t.Fatal(err)
		}
	}
}

// filled makes a closed log of n events.
func filled(t *testing.T, n int) string {
	t.Helper()
	dir := t.TempDir()
	l := open(t, dir, Options{})
	for i := range n {
		add(t, l, wire.Event{Type: wire.EventExec, Path: fmt.Sprintf("/bin/%d", i), Decision: "allow"})
	}
	shut(t, l)
	return dir
}

func read(t *testing.T, dir string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func rewrite(t *testing.T, dir string, data []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "log"), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func verifyDir(dir string) (Head, error) {
	return VerifyFile(filepath.Join(dir, "log"), filepath.Join(dir, "key"))
}

func TestEventsAreNumberedChainedAndStamped(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, Options{})
	add(t, l, wire.Event{Type: wire.EventSession, Phase: "begin"}, wire.Event{Type: wire.EventExec, Argv: []string{"a<b>", "\xff"}})
	shut(t, l)
	lines := bytes.Split(bytes.TrimSuffix(read(t, dir), []byte("\n")), []byte("\n"))
	var prev string
	for i, line := range lines {
		var e wire.Event
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatal(err)
		}
		if e.Seq != uint64(i+1) || e.Prev != prev || len(e.Hash) != 64 || e.Time.IsZero() || e.MonoNanos == 0 {
			t.Errorf("event %d is %+v", i+1, e)
		}
		prev = e.Hash
	}
	if head, err := verifyDir(dir); err != nil || head.Seq != 2 || head.Hash != prev {
		t.Errorf("verify gave %+v %v", head, err)
	}
}

func TestVerifyNamesTheLineThatWasTamperedWith(t *testing.T) {
	whole := read(t, filled(t, 5))
	lines := bytes.SplitAfter(whole, []byte("\n"))[:5]
	join := func(l ...[]byte) []byte { return bytes.Join(l, nil) }
	forged, _, err := encode(nil, wire.Event{Type: wire.EventExec}, Head{Seq: 2, Hash: strings.Repeat("0", 64)})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"an untouched log": {whole, ""},
		"an empty log":     {nil, ""},
		"an edited path":   {bytes.Replace(whole, []byte("/bin/2"), []byte("/bin/9"), 1), "line 3: the event was changed"},
		"an edited hash": {bytes.Replace(whole, lines[1][len(lines[1])-10:], []byte("0000000\"}\n"), 1),
			"line 2: the event was changed"},
		"two lines exchanged":                {join(lines[0], lines[2], lines[1], lines[3]), "line 2: event 3 follows event 1"},
		"a line removed":                     {join(lines[0], lines[1], lines[3], lines[4]), "line 3: event 4 follows event 2"},
		"the beginning removed":              {join(lines[1], lines[2]), "line 1: event 2 follows event 0"},
		"a line doubled":                     {join(lines[0], lines[1], lines[1]), "line 3: event 2 follows event 2"},
		"an event replaced by a forged one":  {join(lines[0], lines[1], forged, lines[3]), "line 3: event 3 does not follow"},
		"the last line cut within":           {whole[:len(whole)-5], "line 5: unfinished"},
		"a line that is not JSON":            {join(lines[0], []byte("hello\n")), "line 2: not an audit event"},
		"a line without end":                 {bytes.Repeat([]byte("x"), MaxLine+2), "line 1: longer than"},
		"an event written behind a null bit": {join(lines[0], []byte("\x00"), lines[1]), "line 2: the event was changed"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Verify(bytes.NewReader(c.data))
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestTheAnchorShowsWhatTheChainCannot(t *testing.T) {
	t.Run("a log cut after a whole line", func(t *testing.T) {
		dir := filled(t, 5)
		data := read(t, dir)
		rewrite(t, dir, data[:bytes.LastIndexByte(data[:len(data)-1], '\n')+1])
		want(t, dir, "it ends with event 4, its anchor names event 5")
	})
	t.Run("a log emptied", func(t *testing.T) {
		dir := filled(t, 5)
		rewrite(t, dir, nil)
		want(t, dir, "it ends with event 0")
	})
	t.Run("another log with a valid chain", func(t *testing.T) {
		dir := filled(t, 5)
		rewrite(t, dir, read(t, filled(t, 5)))
		want(t, dir, "it was replaced")
	})
	t.Run("another log of more events", func(t *testing.T) {
		dir := filled(t, 5)
		rewrite(t, dir, read(t, filled(t, 6)))
		if _, err := verifyDir(dir); err == nil || !strings.Contains(err.Error(), "line 5: it was replaced") {
			t.Errorf("verify gave %v", err)
		}
	})
	t.Run("an anchor made with another key", func(t *testing.T) {
		dir, other := filled(t, 5), filled(t, 5)
		rewrite(t, dir, read(t, other))
		if err := os.Rename(filepath.Join(other, "log.anchor"), filepath.Join(dir, "log.anchor")); err != nil {
			t.Fatal(err)
		}
		want(t, dir, "no record in it was made with the audit key")
	})
	t.Run("a removed anchor", func(t *testing.T) {
		dir := filled(t, 5)
		os.Remove(filepath.Join(dir, "log.anchor"))
		want(t, dir, "no such file")
	})
	t.Run("a removed key", func(t *testing.T) {
		dir := filled(t, 5)
		os.Remove(filepath.Join(dir, "key"))
		want(t, dir, "no such file")
	})
	t.Run("a key that others can read", func(t *testing.T) {
		dir := filled(t, 5)
		os.Chmod(filepath.Join(dir, "key"), 0o644)
		want(t, dir, "mode 0600")
	})
}

// want checks that both verifying and opening the log fail.
func want(t *testing.T, dir, text string) {
	t.Helper()
	if _, err := verifyDir(dir); err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("verify gave %v, want %q", err, text)
	}
	l, err := Open(filepath.Join(dir, "log"), Options{KeyFile: filepath.Join(dir, "key")})
	if err == nil {
		l.Close()
	}
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("open gave %v, want %q", err, text)
	}
}

func TestReopeningContinuesTheChain(t *testing.T) {
	dir := filled(t, 3)
	l := open(t, dir, Options{})
	add(t, l, wire.Event{Type: wire.EventExec, Decision: "deny"})
	shut(t, l)
	if head, err := verifyDir(dir); err != nil || head.Seq != 4 {
		t.Errorf("verify gave %+v %v", head, err)
	}
}

func TestAnUnfinishedLastLineIsSetAside(t *testing.T) {
	dir := filled(t, 3)
	rewrite(t, dir, append(read(t, dir), `{"seq":4,"ti`...))
	l := open(t, dir, Options{})
	add(t, l, wire.Event{Type: wire.EventExec})
	shut(t, l)
	if head, err := verifyDir(dir); err != nil || head.Seq != 5 {
		t.Errorf("verify gave %+v %v", head, err)
	}
	aside, _ := filepath.Glob(filepath.Join(dir, "log.torn-*"))
	if len(aside) != 1 {
		t.Fatalf("files set aside: %q", aside)
	}
	if data, _ := os.ReadFile(aside[0]); string(data) != `{"seq":4,"ti` {
		t.Errorf("set aside: %q", data)
	}
	if !bytes.Contains(read(t, dir), []byte("its 12 bytes were moved to "+aside[0])) {
		t.Error("the log does not tell of it")
	}
}

// Lines that are longer than what is usually read of the end, and shorter ones.
func TestALogGoesOnAfterLinesOfAllLengths(t *testing.T) {
	for _, length := range []int{1, usualTail - 1000, usualTail, 3 * usualTail, MaxLine / 2} {
		for _, torn := range []int{0, 1, usualTail - 1, usualTail, usualTail + 1, MaxLine} {
			dir := filled(t, 2)
			l := open(t, dir, Options{})
			add(t, l, wire.Event{Type: wire.EventExec, Decision: "allow", Message: strings.Repeat("m", length)})
			shut(t, l)
			rewrite(t, dir, append(read(t, dir), strings.Repeat("t", torn)...))
			l = open(t, dir, Options{})
			want := uint64(3)
			if torn > 0 {
				want++ // the fault that tells of it
			}
			if seq := l.Head().Seq; seq != want {
				t.Errorf("a line of %d and %d torn bytes: the head is %d, not %d", length, torn, seq, want)
			}
			shut(t, l)
			if head, err := verifyDir(dir); err != nil || head.Seq != want {
				t.Errorf("a line of %d and %d torn bytes: verify gave %+v %v", length, torn, head, err)
			}
		}
	}
}

func TestAnAnchorSlotTornByACrashLeavesTheOther(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, Options{})
	add(t, l, wire.Event{Type: wire.EventFault}, wire.Event{Type: wire.EventFault}, wire.Event{Type: wire.EventFault})
	torn := l.anchor.slot ^ 1 // the one written last
	shut(t, l)
	f, err := os.OpenFile(filepath.Join(dir, "log.anchor"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteAt([]byte("xxxx"), torn*slotSize)
	f.Close()
	if head, err := verifyDir(dir); err != nil || head.Seq != 3 {
		t.Errorf("verify gave %+v %v", head, err)
	}
	l = open(t, dir, Options{})
	add(t, l, wire.Event{Type: wire.EventFault})
	shut(t, l)
	if head, err := verifyDir(dir); err != nil || head.Seq != 4 {
		t.Errorf("verify gave %+v %v", head, err)
	}
}

func TestALogHasOneWriter(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, Options{})
	defer l.Close()
	if _, err := Open(filepath.Join(dir, "log"), Options{KeyFile: filepath.Join(dir, "key")}); err == nil ||
		!strings.Contains(err.Error(), "another process writes it") {
		t.Errorf("the second open gave %v", err)
	}
}

func TestUnsafeFilesAreRefused(t *testing.T) {
	for name, prepare := range map[string]func(path string) error{
		"a log others can read": func(p string) error { return os.WriteFile(p, nil, 0o644) },
		"a symbolic link":       func(p string) error { return os.Symlink("/dev/null", p) },
		"a directory":           func(p string) error { return os.Mkdir(p, 0o700) },
		"a text file":           func(p string) error { return os.WriteFile(p, []byte("hello\n"), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := prepare(filepath.Join(dir, "log")); err != nil {
				t.Fatal(err)
			}
			if l, err := Open(filepath.Join(dir, "log"), Options{KeyFile: filepath.Join(dir, "key")}); err == nil {
				l.Close()
				t.Error("it was opened")
			}
		})
	}
}

func TestRedactionHappensBeforeTheHashAndSparesTheCaller(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, Options{Redact: func(e *wire.Event) {
		for i := range e.Argv {
			e.Argv[i] = strings.ReplaceAll(e.Argv[i], "secret", "***")
		}
	}})
	argv := []string{"curl", "secret"}
	add(t, l, wire.Event{Type: wire.EventExec, Argv: argv})
	shut(t, l)
	if bytes.Contains(read(t, dir), []byte("secret")) || argv[1] != "secret" {
		t.Errorf("log %s, argv %q", read(t, dir), argv)
	}
	if _, err := verifyDir(dir); err != nil {
		t.Error(err)
	}
}

func TestConcurrentWritersAndFollowersSeeOneOrder(t *testing.T) {
	const writers, each, followers = 4, 25, 3
	dir := t.TempDir()
	l := open(t, dir, Options{SyncDelay: 1})
	var wg sync.WaitGroup
	for range followers {
		f, err := l.Subscribe(0)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			defer f.Close()
			for want := uint64(1); ; want++ {
				e, err := f.Next(context.Background())
				if errors.Is(err, os.ErrClosed) && want == writers*each+1 {
					return
				}
				if err != nil || e.Seq != want {
					t.Errorf("the follower got event %d %v, want %d", e.Seq, err, want)
					return
				}
			}
		})
	}
	var writing sync.WaitGroup
	for w := range writers {
		writing.Go(func() {
			for i := range each {
				if err := l.Append(wire.Event{Type: wire.EventExec, Decision: []string{"allow", "deny"}[(w+i)%2]}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writing.Wait()
	shut(t, l)
	wg.Wait()
	if head, err := verifyDir(dir); err != nil || head.Seq != writers*each {
		t.Errorf("verify gave %+v %v", head, err)
	}
	if err := l.Append(wire.Event{}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("appending to a closed log gave %v", err)
	}
	if _, err := l.Subscribe(0); !errors.Is(err, os.ErrClosed) {
		t.Errorf("following a closed log gave %v", err)
	}
}

func TestAFollowerStartsAtItsOffsetAndStopsWithItsContext(t *testing.T) {
	dir := filled(t, 5)
	l := open(t, dir, Options{})
	defer l.Close()
	f, err := l.Subscribe(4)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, want := range []uint64{4, 5} {
		if e, err := f.Next(context.Background()); err != nil || e.Seq != want {
			t.Errorf("got event %d %v, want %d", e.Seq, err, want)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := f.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want canceled", err)
	}
}

// TestAFollowerOfLateEventsReadsOnlyThose holds what a session of many commands costs, whose callers
// read the events of each.
func TestAFollowerOfLateEventsReadsOnlyThose(t *testing.T) {
	l := open(t, t.TempDir(), Options{})
	defer shut(t, l)
	const n = 3 * markEvery
	for range n {
		add(t, l, wire.Event{Type: wire.EventExec, Path: "/bin/true"})
	}
	for _, from := range []uint64{0, 1, 2, markEvery - 1, markEvery, markEvery + 1, 2*markEvery + 7, n} {
		f, err := l.Subscribe(from)
		if err != nil {
			t.Fatal(err)
		}
		skipped := f.next
		f.StopHere()
		e, err := f.Next(context.Background())
		if err != nil || e.Seq != max(from, 1) {
			t.Errorf("from %d: event %d, %v", from, e.Seq, err)
		}
		if from >= markEvery && skipped == 0 {
			t.Errorf("from %d: all events before it are read", from)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A command reads what its own session wrote, however long the log is.
func TestAFollowerOfNewEventsReadsNoOldOnes(t *testing.T) {
	dir := filled(t, markEvery-3)
	l := open(t, dir, Options{})
	defer shut(t, l)
	size := l.size
	for _, when := range []string{"before it is written", "after it was written"} {
		f, err := l.Subscribe(markEvery - 2)
		if err != nil {
			t.Fatal(err)
		}
		if f.next != size {
			t.Errorf("%s: the follower begins at byte %d of %d", when, f.next, size)
		}
		if when == "before it is written" {
			add(t, l, wire.Event{Type: wire.EventExec})
		}
		if e, err := f.Next(t.Context()); err != nil || e.Seq != markEvery-2 {
			t.Errorf("%s: event %d, %v", when, e.Seq, err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestAFollowerEndsWithTheEventsSoFar(t *testing.T) {
	dir := filled(t, 3)
	l := open(t, dir, Options{})
	defer l.Close()
	f, err := l.Subscribe(0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	f.StopHere()
	add(t, l, wire.Event{Type: wire.EventExec})
	for want := uint64(1); want <= 3; want++ {
		if e, err := f.Next(t.Context()); err != nil || e.Seq != want {
			t.Errorf("got event %d %v, want %d", e.Seq, err, want)
		}
	}
	if e, err := f.Next(t.Context()); !errors.Is(err, ErrStopped) {
		t.Errorf("got event %d, %v", e.Seq, err)
	}
}

func TestAnEventTooLargeIsRefused(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, Options{})
	if err := l.Append(wire.Event{Path: strings.Repeat("x", MaxLine)}); err == nil {
		t.Error("it was written")
	}
	add(t, l, wire.Event{Path: strings.Repeat("x", MaxLine-1024)})
	shut(t, l)
	if head, err := verifyDir(dir); err != nil || head.Seq != 1 {
		t.Errorf("verify gave %+v %v", head, err)
	}
	shut(t, open(t, dir, Options{}))
}

// onSmallDisk calls do with a directory on a tmpfs of 64 KiB, in a mount namespace of its own. do may not call
// [testing.T.Fatal]: it runs in another goroutine.
func onSmallDisk(t *testing.T, do func(t *testing.T, dir string)) {
	t.Helper()
	testenv.Need(t, testenv.Root)
	dir := t.TempDir()
	done := make(chan struct{})
	go func() { // the thread is never unlocked: it ends with the namespace
		defer close(done)
		runtime.LockOSThread()
		for _, err := range []error{
			unix.Unshare(unix.CLONE_NEWNS),
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("small", dir, "tmpfs", 0, "size=64k"),
		} {
			if err != nil {
				t.Error(err)
				return
			}
		}
		defer unix.Unmount(dir, unix.MNT_DETACH)
		do(t, dir)
	}()
	<-done
}

func TestAFullDiskIsReportedAndLeavesTheLogValid(t *testing.T) { onSmallDisk(t, fullDisk) }

func fullDisk(t *testing.T, dir string) {
	l, err := Open(filepath.Join(dir, "log"), Options{KeyFile: filepath.Join(dir, "key")})
	if err != nil {
		t.Error(err)
		return
	}
	written := uint64(0)
	for err == nil && written < 100 {
		if err = l.Append(wire.Event{Type: wire.EventExec, Path: strings.Repeat("x", 5000), Decision: "deny"}); err == nil {
			written++
		}
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("the full disk gave %v after %d events", err, written)
	}
	if err := l.Append(wire.Event{Type: wire.EventExec, Decision: "deny"}); err != nil {
		t.Errorf("a short event, for which there is room, gave %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if head, err := verifyDir(dir); err != nil || head.Seq != written+1 {
		t.Errorf("verify gave %+v %v, want %d", head, err, written+1)
	}
}

func FuzzVerify(f *testing.F) {
	line, _, _ := encode(nil, wire.Event{Type: wire.EventExec, Argv: []string{"a"}}, Head{})
	f.Add(line)
	f.Add(append(bytes.Clone(line), line...))
	f.Fuzz(func(t *testing.T, data []byte) {
		head, err := Verify(bytes.NewReader(data))
		if err == nil && head.Seq != uint64(bytes.Count(data, []byte("\n"))) {
			t.Errorf("%d events in %q", head.Seq, data)
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	dir := b.TempDir()
	l, err := Open(filepath.Join(dir, "log"), Options{KeyFile: filepath.Join(dir, "key")})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	e := wire.Event{Type: wire.EventExec, Argv: []string{"/bin/true", "-x"}, Path: "/bin/true", Decision: "allow",
		Process: &wire.Process{
			PID:       12,
			StartTime: 34,
			Exe:       "/bin/bash",
			Cwd:       "/work",
		}, Rule: &wire.RuleAt{Name: "r", File: "p.yaml", Line: 1, Column: 2}}
	b.ReportAllocs()
	for b.Loop() {
		if err := l.Append(e); err != nil {
			b.Fatal(err)
		}
	}
}

func TestFirstLogsMayBeOpenedAtTheSameTime(t *testing.T) {
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			log, err := Open(filepath.Join(dir, fmt.Sprint(i)), Options{KeyFile: key})
			if err != nil {
				t.Error(err)
				return
			}
			if err := errors.Join(log.Append(wire.Event{Type: wire.EventSession}), log.Close()); err != nil {
				t.Error(err)
			}
			if _, err := VerifyFile(filepath.Join(dir, fmt.Sprint(i)), key); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// names are the files of a directory.
func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return strings.Join(out, " ")
}

func TestALogWithoutAnEventLeavesNothing(t *testing.T) {
	t.Run("closed", func(t *testing.T) {
		dir := filled(t, 0)
		if got := names(t, dir); got != "key" {
			t.Errorf("left are %s", got)
		}
		l := open(t, dir, Options{})
		add(t, l, wire.Event{Type: wire.EventFault})
		shut(t, l)
		if head, err := verifyDir(dir); err != nil || head.Seq != 1 {
			t.Errorf("the next log: %+v %v", head, err)
		}
	})
	t.Run("not opened", func(t *testing.T) {
		dir := filled(t, 0)
		if err := os.Chmod(filepath.Join(dir, "key"), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(filepath.Join(dir, "log"), Options{KeyFile: filepath.Join(dir, "key")}); err == nil {
			t.Error("opened with a key that others can read")
		}
		if got := names(t, dir); got != "key" {
			t.Errorf("left are %s", got)
		}
	})
	t.Run("a file that was there stays", func(t *testing.T) {
		dir := t.TempDir()
		rewrite(t, dir, nil)
		shut(t, open(t, dir, Options{}))
		if got := names(t, dir); got != "key log log.anchor" {
			t.Errorf("left are %s", got)
		}
	})
	t.Run("a file that took its name stays", func(t *testing.T) {
		dir := t.TempDir()
		l := open(t, dir, Options{})
		if err := os.Rename(filepath.Join(dir, "log"), filepath.Join(dir, "moved")); err != nil {
			t.Fatal(err)
		}
		rewrite(t, dir, []byte("other"))
		shut(t, l)
		if got := string(read(t, dir)); got != "other" {
			t.Errorf("it has %q", got)
		}
	})
}

func TestNoEventIsWrittenToARemovedLog(t *testing.T) {
	for range 300 {
		dir := t.TempDir()
		first := open(t, dir, Options{})
		var closing sync.WaitGroup
		closing.Go(func() { shut(t, first) })
		second, err := first, os.ErrExist
		for err != nil { // the other one has it
			second, err = Open(filepath.Join(dir, "log"), Options{KeyFile: filepath.Join(dir, "key")})
		}
		add(t, second, wire.Event{Type: wire.EventExec, Decision: "allow"})
		closing.Wait()
		shut(t, second)
		if head, err := verifyDir(dir); err != nil || head.Seq != 1 {
			t.Fatalf("%+v %v", head, err)
		}
	}
}

func TestVerifySaysThatNoSessionBegan(t *testing.T) {
	dir := filled(t, 1)
	rewrite(t, dir, nil)
	if err := os.Truncate(filepath.Join(dir, "log.anchor"), 0); err != nil {
		t.Fatal(err)
	}
	const want = "it has no event, and its anchor is empty: its supervisor was killed before the session began, or both were emptied"
	if _, err := verifyDir(dir); err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("verify gave %v", err)
	}
}
