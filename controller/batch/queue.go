package batch

import (
	"slices"
	"time"
)

// queue says which run is next. Harnesses take turns, and the repositories of a harness do. Runs
// of one harness and repository are in their order. A run that a cap holds back holds back no
// other one. Not safe for concurrent use.
type queue struct {
	caps    Caps
	items   []Item
	groups  []*group            // one for each harness
	lines   map[[2]string]*line // by harness and repository
	turn    int                 // index of the group that is asked first
	running map[int]bool
	count   struct {
		backends, models map[string]int
	}
	waiting int
}

// group are the waiting runs of a harness.
type group struct {
	harness string
	repos   []*line
	turn    int // index of the line that is asked first
}

// line are the waiting runs of a harness and a repository.
type line struct {
	waiting []entry
}

// entry is a waiting run.
type entry struct {
	item      int
	notBefore time.Time
}

func newQueue(items []Item, caps Caps) *queue {
	q := &queue{caps: caps, items: items, lines: map[[2]string]*line{}, running: map[int]bool{}}
	q.count.backends, q.count.models = map[string]int{}, map[string]int{}
	return q
}

// add puts a run at the end of its line.
func (q *queue) add(item int) {
	l := q.line(item)
	l.waiting = append(l.waiting, entry{item: item})
	q.waiting++
}

// again puts a run at the head of its line. It is not next before a time.
func (q *queue) again(item int, notBefore time.Time) {
	l := q.line(item)
	l.waiting = append([]entry{{item, notBefore}}, l.waiting...)
	q.waiting++
}

// line is the line of a run.
func (q *queue) line(item int) *line {
	one := q.items[item]
	key := [2]string{one.Harness, one.Repo}
	if l := q.lines[key]; l != nil {
		return l
	}
	l := &line{}
	q.lines[key] = l
	i := slices.IndexFunc(q.groups, func(g *group) bool { return g.harness == one.Harness })
	if i < 0 {
		i = len(q.groups)
		q.groups = append(q.groups, &group{harness: one.Harness})
	}
	q.groups[i].repos = append(q.groups[i].repos, l)
	return l
}

// next takes the next run from the queue. If there is none now, wait is the time until one may be;
// 0: not before a run ends.
func (q *queue) next(now time.Time) (item int, ok bool, wait time.Duration) {
	if len(q.running) >= q.caps.Runs {
		return 0, false, 0
	}
	for i := range q.groups {
		at := (q.turn + i) % len(q.groups)
		g := q.groups[at]
		for j := range g.repos {
			to := (g.turn + j) % len(g.repos)
			l := g.repos[to]
			k, later := q.first(l, now)
			if later > 0 && (wait == 0 || later < wait) {
				wait = later
			}
			if k < 0 {
				continue
			}
			item = l.waiting[k].item
			l.waiting = append(l.waiting[:k], l.waiting[k+1:]...)
			q.turn, g.turn = (at+1)%len(q.groups), (to+1)%len(g.repos)
			q.start(item)
			return item, true, 0
		}
	}
	return 0, false, wait
}

// first is the index of the first run of a line that may start; -1: none. later is the time until
// one may that is held back by its time alone.
func (q *queue) first(l *line, now time.Time) (index int, later time.Duration) {
	if len(l.waiting) == 0 || !q.fits(l.waiting[0].item) { // all of a line have one backend and one provider
		return -1, 0
	}
	for i, e := range l.waiting {
		left := e.notBefore.Sub(now)
		if left <= 0 {
			return i, 0
		}
		if later == 0 || left < later {
			later = left
		}
	}
	return -1, later
}

// fits reports whether the caps of its backend and its provider allow a run.
func (q *queue) fits(item int) bool {
	one := q.items[item]
	for _, c := range []struct {
		caps, count map[string]int
		name        string
	}{{q.caps.Backends, q.count.backends, one.Backend}, {q.caps.Models, q.count.models, one.Provider}} {
		if most, bound := c.caps[c.name]; bound && c.count[c.name] >= most {
			return false
		}
	}
	return true
}

// start counts a run that goes on.
func (q *queue) start(item int) {
	q.waiting--
	q.running[item] = true
	q.count.backends[q.items[item].Backend]++
	q.count.models[q.items[item].Provider]++
}

// end counts a run that has ended.
func (q *queue) end(item int) {
	delete(q.running, item)
	q.count.backends[q.items[item].Backend]--
	q.count.models[q.items[item].Provider]--
}

// remove takes waiting runs out.
func (q *queue) remove(which func(item int) bool) {
	for _, g := range q.groups {
		for _, l := range g.repos {
			kept := l.waiting[:0]
			for _, e := range l.waiting {
				if !which(e.item) {
					kept = append(kept, e)
				}
			}
			q.waiting -= len(l.waiting) - len(kept)
			l.waiting = kept
		}
	}
}
