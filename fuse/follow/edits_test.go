package follow

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"agentsh/fuse/watch"
)

// told collects what [Edits] reports at a flush.
func told(s *Edits, got *[]string) []string {
	*got = nil
	s.Flush()
	slices.Sort(*got)
	return *got
}

func newTold() (*Edits, *[]string) {
	var got []string
	return NewEdits(func(list []Edit, _, _ int) {
		for _, e := range list {
			got = append(got, e.Path)
		}
	}), &got
}

func TestWhatTheSupervisorWroteIsNoEdit(t *testing.T) {
	s, got := newTold()
	for _, p := range []string{"a", "in", "in/x", "in/d/y", "ind", "z"} {
		s.Note(Edit{Path: p, Op: watch.Created})
	}
	s.Wrote("in", "in/x", "in/d", "in/d/y", "z")
	s.Note(Edit{Path: "in/later", Op: watch.Created})
	if list := told(s, got); !slices.Equal(list, []string{"a", "ind"}) {
		t.Errorf("%q", list)
	}
}

func TestTheRootOfAMountCoversNothingBelowIt(t *testing.T) {
	s, got := newTold()
	s.Note(Edit{Path: "a", Op: watch.Created})
	s.Note(Edit{Path: "b", Op: watch.Created})
	s.Wrote("", "a")
	s.Note(Edit{Path: "a", Op: watch.Created})
	if list := told(s, got); !slices.Equal(list, []string{"b"}) {
		t.Errorf("%q", list)
	}
}

// TestATreeThatTheSupervisorWroteIsRememberedByItsTop writes more paths than are remembered.
func TestATreeThatTheSupervisorWroteIsRememberedByItsTop(t *testing.T) {
	s, got := newTold()
	paths := []string{"in"}
	for i := range 2 * maxKnown {
		paths = append(paths, fmt.Sprint("in/f", i))
	}
	s.Wrote(paths...)
	if n := len(s.known.at); n != 1 {
		t.Errorf("%d paths are remembered", n)
	}
	s.Wrote("other")
	s.Note(Edit{Path: "in/f9000", Op: watch.Created})
	s.Note(Edit{Path: "other", Op: watch.Created})
	if list := told(s, got); len(list) > 0 {
		t.Errorf("%q", list)
	}
}

// TestRememberingAFurtherPathLooksAtNoOther counts the searches for old paths.
func TestRememberingAFurtherPathLooksAtNoOther(t *testing.T) {
	r, now := newRecent(), time.Now()
	for i := range maxKnown {
		r.add(fmt.Sprint(i), now)
	}
	r.add("first", now)
	swept, late := r.swept, now.Add(sweepInterval/2)
	r.add("second", late)
	if !r.swept.Equal(swept) || swept.IsZero() {
		t.Errorf("searched at %s and %s", swept, r.swept)
	}
	r.add("third", now.Add(2*ownWindow))
	if len(r.at) != 1 {
		t.Errorf("%d paths are left", len(r.at))
	}
}
