package fuse

import (
	"sync"

	"agentsh/internal/snapshot"
)

// BeforeName names the donated descriptor of the directory that keeps what files
// of the first mount held before they were changed.
const BeforeName = "before"

// before keeps the old content of changed files. A nil before keeps nothing.
type before struct {
	mu   sync.Mutex
	kept *snapshot.Previous
}

// rememberBefore keeps what the file at p holds if the session has not changed it
// yet under its names. It serves differences only: what cannot be kept is not.
func (m *mount) rememberBefore(names []string, p place) {
	if m.old == nil {
		return
	}
	for _, rel := range names {
		from, unchanged := m.changes.unchanged(rel)
		if !unchanged {
			continue
		}
		m.old.mu.Lock()
		_ = m.old.kept.Save(from, p.dirfd, p.name)
		m.old.mu.Unlock()
	}
}

// unchanged reports whether the file now at rel is what the baseline had, and
// where the baseline had it.
func (c *changes) unchanged(rel string) (from string, unchanged bool) {
	if c.away.has(rel) {
		return "", false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.at(rel)
	return e.from, !e.fresh && !e.modified
}
