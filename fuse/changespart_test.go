package fuse

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"agentsh/internal/wire"
)

func TestChangesOfAnyNamesFitInMessages(t *testing.T) {
	for _, b := range []string{"a", "\x01", "<", "\xff"} {
		name := wire.Name(strings.Repeat(b, 4095))
		var list []wire.Change
		for range 400 {
			list = append(list, wire.Change{Path: name, From: name, Kind: wire.Renamed})
		}
		for messages := 0; len(list) > 0; messages++ {
			n := changesPart(list)
			if n < 1 || n > len(list) {
				t.Fatalf("%q: %d of %d changes in a message", b, n, len(list))
			}
			data, err := json.Marshal(reply{ID: 1, More: true, Changes: list[:n]})
			if err != nil || len(data) > messageBytes {
				t.Errorf("%q: a message of %d bytes: %v", b, len(data), err)
			}
			list = list[n:]
		}
	}
}

func TestManyShortChangesShareAMessage(t *testing.T) {
	list := make([]wire.Change, 4001)
	for i := range list {
		list[i] = wire.Change{Path: "directory/file", Kind: wire.Created}
	}
	if n := changesPart(list); n != 2000 {
		t.Errorf("%d changes in a message", n)
	}
	if n := changesPart(list[:1]); n != 1 {
		t.Errorf("%d of one change", n)
	}
}

// TestManyPathsAreInvalidated has more paths than fit in a message. The kernel caches the last as absent.
func TestManyPathsAreInvalidated(t *testing.T) {
	s := start(t, options{})
	var paths []string
	for _, c := range s.writeMany()[:1000] {
		paths = append(paths, s.path(string(c.Path)))
	}
	last := s.path("last")
	if _, err := os.Lstat(last); err == nil {
		t.Fatal("it exists")
	}
	must(t, os.WriteFile(s.back("last"), nil, 0o644))
	must(t, s.control.Invalidate(t.Context(), append(paths, last)...))
	if _, err := os.Lstat(last); err != nil {
		t.Error(err)
	}
	names := []wire.Name{wire.Name(strings.Repeat("x", messageBytes)), "y"}
	if n := namesPart(names); n != 1 {
		t.Errorf("%d names in a message", n)
	}
	if n := namesPart(names[1:]); n != 1 {
		t.Errorf("%d of one name", n)
	}
}

// writeMany makes files behind the mount, and returns more changes than fit in a message.
func (s *session) writeMany() (list []wire.Change) {
	for i := range 4001 {
		name := fmt.Sprintf("%s%d", strings.Repeat("\x01", 200), i)
		must(s.t, os.WriteFile(s.back(name), nil, 0o644))
		list = append(list, wire.Change{Path: wire.Name(name), Kind: wire.Created})
	}
	return list
}

func TestAFreezeEndsAfterManyChanges(t *testing.T) {
	s := start(t, options{})
	must(t, s.control.Baseline(t.Context()))
	must(t, s.control.Freeze(t.Context()))
	list := s.writeMany()
	must(t, s.control.Unfreeze(t.Context(), "ws", list))
	must(t, os.WriteFile(s.path("later"), nil, 0o644))
	if got, err := s.control.Changes(t.Context(), "ws"); err != nil || len(got) != len(list)+1 {
		t.Errorf("%d changes, want %d: %v", len(got), len(list)+1, err)
	}
}

// A part that is not answered in time must not leave the files frozen.
func TestAFailedUnfreezeEndsTheFreeze(t *testing.T) {
	s := start(t, options{})
	must(t, s.control.Baseline(t.Context()))
	must(t, s.control.Freeze(t.Context()))
	list := s.writeMany()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.control.Unfreeze(ended, "ws", list); err == nil {
		t.Error("it was not reported")
	}
	must(t, s.control.Freeze(t.Context()))
	must(t, s.control.Unfreeze(t.Context(), "ws", nil))
}
