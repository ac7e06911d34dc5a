package audit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
)

// someEvents are events of a log, as its followers get them.
func someEvents(t *testing.T) (events []wire.Event, log []byte) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	l, err := Open(path, Options{KeyFile: path + ".key"})
	if err != nil {
		t.Fatal(err)
	}
	f, err := l.Subscribe(0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, e := range []wire.Event{
		{Type: wire.EventSession, Phase: "begin", HeldBy: map[string]string{"files": "fuse"}},
		{Type: "exec", Path: "/bin/\xff\n", Argv: wire.Names{"a", "<é>", "\xfe"}, Decision: "deny", Time: time.Unix(1, 5).UTC()},
		{
			Type: "command", Exit: &wire.Exit{Kind: "exited"}, Process: &wire.Process{PID: 1, Exe: "/x"},
			Env: []string{"A", strings.Repeat("x", 6000)},
		},
	} {
		if err := l.Append(e); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for {
		e, err := f.Next(context.Background())
		if errors.Is(err, os.ErrClosed) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, e)
	}
	log, err = os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return events, log
}

func TestACopyHasTheBytesOfTheLog(t *testing.T) {
	events, log := someEvents(t)
	path := filepath.Join(t.TempDir(), "copy.jsonl")
	c, err := NewCopy(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if err := c.Append(e); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != string(log) {
		t.Errorf("%v\n%s\n%s", err, got, log)
	}
	if head := c.Head(); head.Seq != uint64(len(events)) {
		t.Errorf("head %+v", head)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if _, err := NewCopy(path); !errors.Is(err, os.ErrExist) {
		t.Errorf("it was replaced: %v", err)
	}
}

func TestACopyRefusesEventsThatAreNotTheNextOnes(t *testing.T) {
	events, _ := someEvents(t)
	other, _ := someEvents(t)
	for name, tt := range map[string]struct {
		events []wire.Event
		want   string
	}{
		"a gap":               {[]wire.Event{events[0], events[2]}, "event 3 follows event 1"},
		"a missing beginning": {events[1:], "event 2 follows event 0"},
		"a repeated event":    {[]wire.Event{events[0], events[0]}, "event 1 follows event 1"},
		"another log":         {[]wire.Event{events[0], other[1]}, "that one was replaced"},
		"a changed event": {[]wire.Event{func(e wire.Event) wire.Event {
			e.Message = "other"
			return e
		}(events[0])}, "hash does not match"},
		"an event without a hash":   {[]wire.Event{{Seq: 1, Type: "exec"}}, "not an audit event"},
		"an event that is too long": {[]wire.Event{{Seq: 1, Type: "exec", Message: strings.Repeat("x", MaxLine)}}, "at most"},
	} {
		c, err := NewCopy(filepath.Join(t.TempDir(), "copy.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range tt.events {
			err = errors.Join(err, c.Append(e))
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestACopyIsBounded(t *testing.T) {
	events, log := someEvents(t)
	path := filepath.Join(t.TempDir(), "copy.jsonl")
	c, err := NewCopy(path)
	if err != nil {
		t.Fatal(err)
	}
	c.limit = int64(len(log)) - 1
	for i, e := range events {
		err = c.Append(e)
		if last := i == len(events)-1; (err == nil) == last {
			t.Fatalf("event %d: %v", i, err)
		}
	}
	if !strings.Contains(err.Error(), fmt.Sprintf("more than %d bytes", c.limit)) || c.Append(events[0]) == nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(path); err != nil || !strings.HasPrefix(string(log), string(got)) || !strings.HasSuffix(string(got), "\n") {
		t.Errorf("%v, the copy is no beginning of the log: %q", err, got)
	}
}

func TestACopyGoesOnWhereTheDiskWasFull(t *testing.T) {
	events, log := someEvents(t)
	onSmallDisk(t, func(t *testing.T, dir string) { copyOnFullDisk(t, dir, events, log) })
}

func copyOnFullDisk(t *testing.T, dir string, events []wire.Event, log []byte) {
	filler, path := filepath.Join(dir, "filler"), filepath.Join(dir, "copy.jsonl")
	c, err := NewCopy(path)
	if err != nil {
		t.Error(err)
		return
	}
	failed := 0
	for i, e := range events { // the first needs a page, the last one two more, and the end of the first is there
		_ = os.WriteFile(filler, make([]byte, 64<<10), 0o600)
		err := c.Append(e)
		if errors.Is(err, unix.ENOSPC) {
			failed++
			err = errors.Join(os.Remove(filler), c.Append(e))
		}
		if err != nil {
			t.Errorf("event %d: %v", i, err)
		}
	}
	if failed != 2 {
		t.Errorf("%d events found a full disk", failed)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != string(log) {
		t.Errorf("the copy is %q, %v", got, err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
