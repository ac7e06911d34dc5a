package batch

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// order starts runs as far as they may, ends them in their order, and returns the names in the
// order of their starts.
func order(q *queue) []string {
	var names []string
	var running []int
	for {
		i, ok, _ := q.next(time.Unix(1, 0))
		if ok {
			names = append(names, q.items[i].Name)
			running = append(running, i)
			continue
		}
		if len(running) == 0 {
			return names
		}
		q.end(running[0])
		running = running[1:]
	}
}

func filled(items []Item, caps Caps) *queue {
	q := newQueue(items, caps)
	for i := range items {
		q.add(i)
	}
	return q
}

func TestHarnessesAndThenRepositoriesTakeTurns(t *testing.T) {
	var items []Item
	add := func(harness, repo string, n int) {
		for i := range n {
			items = append(items, Item{Name: fmt.Sprintf("%s%s%d", harness, repo, i), Harness: harness, Repo: repo})
		}
	}
	add("a", "x", 4)
	add("a", "y", 2)
	add("b", "x", 2)
	if got := strings.Join(order(filled(items, Caps{Runs: 1})), " "); got != "ax0 bx0 ay0 bx1 ax1 ay1 ax2 ax3" {
		t.Error(got)
	}
}

func TestARunThatACapHoldsBackHoldsBackNoOther(t *testing.T) {
	items := []Item{
		{Name: "a1", Harness: "a", Repo: "r", Provider: "p"}, {Name: "a2", Harness: "a", Repo: "r", Provider: "p"},
		{Name: "a3", Harness: "a", Repo: "r", Provider: "p"}, {Name: "b1", Harness: "b", Repo: "r", Provider: "q"},
		{Name: "b2", Harness: "b", Repo: "r", Provider: "q"},
	}
	q := filled(items, Caps{Runs: 3, Models: map[string]int{"p": 1}})
	var first []string
	for {
		i, ok, wait := q.next(time.Now())
		if !ok {
			if wait != 0 {
				t.Errorf("waits %s", wait)
			}
			break
		}
		first = append(first, items[i].Name)
	}
	if want := []string{"a1", "b1", "b2"}; !slices.Equal(first, want) {
		t.Errorf("%v, want %v", first, want)
	}
	q.end(0) // a1
	if i, ok, _ := q.next(time.Now()); !ok || items[i].Name != "a2" {
		t.Errorf("after a1: %d %v", i, ok)
	}
}

func TestARunWaitsForItsTimeAndIsThenNext(t *testing.T) {
	items := []Item{{Name: "a", Harness: "h", Repo: "r"}, {Name: "b", Harness: "h", Repo: "r"}}
	q := newQueue(items, Caps{Runs: 1})
	now := time.Unix(1000, 0)
	q.again(0, now.Add(time.Minute))
	if _, ok, wait := q.next(now); ok || wait != time.Minute {
		t.Errorf("%v %s", ok, wait)
	}
	q.add(1)
	if i, ok, _ := q.next(now); !ok || i != 1 {
		t.Errorf("%d %v: another one does not wait", i, ok)
	}
	q.end(1)
	q.add(1)
	if i, ok, _ := q.next(now.Add(time.Minute)); !ok || i != 0 {
		t.Errorf("%d %v: its turn comes first", i, ok)
	}
}

// A random batch with random ends: no cap is exceeded, every run starts once, and no harness starts two
// more runs than another one that could start.
func TestRandomBatchesKeepTheirCapsAndAreFair(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		caps := Caps{Runs: 1 + r.IntN(6), Backends: map[string]int{}, Models: map[string]int{}}
		for _, name := range []string{"x", "y"} {
			if r.IntN(2) == 0 {
				caps.Backends[name] = 1 + r.IntN(3)
			}
			if r.IntN(2) == 0 {
				caps.Models[name] = 1 + r.IntN(3)
			}
		}
		var items []Item
		for h := range 1 + r.IntN(4) {
			of := Item{Harness: fmt.Sprint("h", h), Backend: []string{"x", "y", "z"}[r.IntN(3)], Provider: []string{"x", "y", ""}[r.IntN(3)]}
			for range 1 + r.IntN(20) {
				of.Repo = fmt.Sprint("r", r.IntN(3))
				items = append(items, of)
			}
		}
		checkRandom(t, r, filled(items, caps))
	}
}

func checkRandom(t *testing.T, r *rand.Rand, q *queue) {
	t.Helper()
	started := map[int]bool{}
	backends, models := map[string]int{}, map[string]int{}
	var running []int
	for len(started) < len(q.items) || len(running) > 0 {
		i, ok, wait := q.next(time.Now())
		if !ok {
			if wait != 0 || len(running) == 0 {
				t.Fatalf("nothing runs and nothing starts: %d of %d, wait %s", len(started), len(q.items), wait)
			}
			k := r.IntN(len(running))
			one := q.items[running[k]]
			backends[one.Backend]--
			models[one.Provider]--
			q.end(running[k])
			running = slices.Delete(running, k, k+1)
			continue
		}
		if started[i] {
			t.Fatalf("%d starts twice", i)
		}
		started[i] = true
		running = append(running, i)
		one := q.items[i]
		backends[one.Backend]++
		models[one.Provider]++
		for _, c := range []struct {
			count, caps map[string]int
			name        string
		}{{backends, q.caps.Backends, one.Backend}, {models, q.caps.Models, one.Provider}} {
			if most, has := c.caps[c.name]; has && c.count[c.name] > most {
				t.Fatalf("%d of %s, at most %d", c.count[c.name], c.name, most)
			}
		}
		if len(running) > q.caps.Runs {
			t.Fatalf("%d runs, at most %d", len(running), q.caps.Runs)
		}
	}
}

// With one cap for all, harnesses with runs left differ by one start at most.
func TestNoHarnessIsAheadByMoreThanOne(t *testing.T) {
	var items []Item
	for h, n := range []int{200, 3, 50} {
		for range n {
			items = append(items, Item{Harness: fmt.Sprint(h), Repo: "r"})
		}
	}
	q := filled(items, Caps{Runs: 8})
	left := map[string]int{"0": 200, "1": 3, "2": 50}
	starts := map[string]int{}
	for range len(items) {
		i, ok, _ := q.next(time.Now())
		if !ok {
			t.Fatal("nothing starts")
		}
		h := items[i].Harness
		starts[h]++
		left[h]--
		for other, n := range left {
			if n > 0 && starts[h] > starts[other]+1 {
				t.Fatalf("%s started %d times, %s %d times and has %d left", h, starts[h], other, starts[other], n)
			}
		}
		q.end(i)
	}
}
