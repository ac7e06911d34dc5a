package fuse

import (
	"os"
	"testing"

	"agentsh/internal/wire"
)

// TestAFrozenOperationWaitsAndSeesNewContent: a checkpoint and a rollback happen
// between Hold and Release.
func TestAFrozenOperationWaitsAndSeesNewContent(t *testing.T) {
	s := start(t, options{})
	s.seed(map[string]string{"a": "old", "d/f": "f"})
	must(t, s.control.Baseline(t.Context()))
	must(t, os.WriteFile(s.path("new"), nil, 0o644))
	holds(t, s.path("a"), "old")
	if _, err := os.Stat(s.path("back")); err == nil {
		t.Error("back is there")
	}
	open, err := os.OpenFile(s.path("a"), os.O_WRONLY, 0)
	must(t, err)
	defer open.Close()
	must(t, s.control.Freeze(t.Context()))
	done := make(chan error, 1)
	go func() { done <- os.WriteFile(s.path("late"), nil, 0o644) }()
	if _, err := open.WriteString("OLD"); err != nil { // what is open is not stopped
		t.Error(err)
	}
	if _, err := s.control.Changes(t.Context(), "ws"); err == nil {
		t.Error("other calls do not fail")
	}
	select {
	case err := <-done:
		t.Errorf("a file was made while the files were held: %v", err)
	default:
	}
	must(t, os.Remove(s.back("new")))
	must(t, os.RemoveAll(s.back("d")))
	must(t, os.WriteFile(s.back("back"), []byte("b"), 0o644))
	must(t, s.control.Unfreeze(t.Context(), "ws", []wire.Change{{Path: "new", Kind: "deleted"}, {Path: "d/f", Kind: "deleted"},
		{Path: "d", Kind: "deleted"}, {Path: "back", Kind: "created"}}))
	must(t, <-done)
	holds(t, s.path("back"), "b")
	for _, gone := range []string{"new", "d", "d/f"} {
		if _, err := os.Lstat(s.path(gone)); !os.IsNotExist(err) {
			t.Errorf("%s: %v", gone, err)
		}
	}
	if err := s.control.Unfreeze(t.Context(), "ws", nil); err == nil {
		t.Error("released twice")
	}
	list, err := s.control.Changes(t.Context(), "ws")
	must(t, err)
	want := []wire.Change{{Path: "a", Kind: "modified"}, {Path: "back", Kind: "created"}, {Path: "d", Kind: "deleted"},
		{Path: "d/f", Kind: "deleted"}, {Path: "late", Kind: "created"}}
	if len(list) != len(want) {
		t.Fatalf("changes %+v", list)
	}
	for i := range want {
		if list[i] != want[i] {
			t.Errorf("change %d: %+v, want %+v", i, list[i], want[i])
		}
	}
}
