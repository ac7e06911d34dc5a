package fuse

import "testing"

// walk lists directories and says how many of them had attributes; looks: a file of each is
// looked up.
func walk(o *habits, thread uint32, dirs int, looks bool) (plus int) {
	for dir := range dirs {
		id := uint64(thread)<<32 + uint64(dir)
		if !o.namesOnly(thread, id, true) {
			plus++
		}
		if looks {
			o.lookedUp(id)
		}
	}
	return plus
}

func TestWhoNeedsNamesAloneGetsNames(t *testing.T) {
	o := &habits{}
	if plus := walk(o, 1, 1000, false); plus != firstTrial {
		t.Errorf("names alone: %d of 1000 directories with attributes", plus)
	}
	if plus := walk(o, 2, 1000, true); plus < 990 {
		t.Errorf("files are looked up: %d of 1000 directories with attributes", plus)
	}
	if plus := walk(o, 1, 100, true); plus < 95 {
		t.Errorf("files are looked up from now on: %d of 100 directories with attributes", plus)
	}
}

func TestAListingGoesOnAsItBegan(t *testing.T) {
	o := &habits{}
	walk(o, 1, firstTrial, false)
	if !o.namesOnly(1, 77, true) || !o.namesOnly(1, 77, false) {
		t.Error("no names")
	}
	o.lookedUp(77)
	if !o.namesOnly(1, 77, false) {
		t.Error("the listing changed in between")
	}
	if o.namesOnly(1, 78, true) {
		t.Error("the next one has no attributes")
	}
}

func TestHabitsOfManyThreadsAreBounded(t *testing.T) {
	o := &habits{}
	for thread := range uint32(10 * maxHabits) {
		walk(o, thread, firstTrial+2, false)
	}
	if len(o.threads) > maxHabits || len(o.bare) > maxHabits {
		t.Errorf("%d threads, %d directories", len(o.threads), len(o.bare))
	}
}
