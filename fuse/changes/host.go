package changes

import (
	"strings"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
)

// maxHost bounds the paths that are recorded as changed by the host. Further ones are
// not recorded.
const maxHost = 1 << 16

// HostChanged records that a process outside the session changed the file at rel. existed
// says that a file was there before the change.
func (c *Record) HostChanged(rel string, existed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.host[rel]; !known && len(c.host) < maxHost {
		c.host[rel] = existed
	}
}

// moveHost moves what the host changed along with a name.
func (c *Record) moveHost(from, to string, dir bool) {
	moved := map[string]bool{}
	for rel, existed := range c.host {
		if rel == from || dir && strings.HasPrefix(rel, from) && rel[len(from)] == '/' {
			moved[to+rel[len(from):]] = existed
			delete(c.host, rel)
		}
	}
	for rel, existed := range moved {
		c.host[rel] = existed
	}
}

// addHost adds the changes of the host to those of the session, and marks the paths
// that both changed.
func (c *Record) addHost(list []wire.Change, stat func(rel string, st *unix.Stat_t) error) []wire.Change {
	both := map[string]bool{}
	for i := range list {
		rel := string(list[i].Path)
		if _, host := c.host[rel]; host {
			list[i].By = wire.ByBoth
			both[rel] = true
		}
	}
	for rel, existed := range c.host {
		if both[rel] || rel == "" {
			continue
		}
		change := wire.Change{Path: wire.Name(rel), By: wire.ByHost}
		var st unix.Stat_t
		exists := stat(rel, &st) == nil
		existed = existed && !c.at(rel).fresh
		switch {
		case existed && exists:
			change.Kind = wire.Modified
		case existed:
			change.Kind = wire.Deleted
		case exists:
			change.Kind = wire.Created
		default:
			continue
		}
		list = append(list, change)
	}
	return list
}
