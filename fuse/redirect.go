package fuse

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"agentsh/policy"
)

// redirects are the names of one mount that lead elsewhere since a rule sent a
// write there. From then on, for the rest of the session, everything about such
// a name is about the file it leads to; what the backing has under the name
// stays as it was.
type redirects struct {
	some atomic.Bool // a name is redirected

	mu    sync.RWMutex
	names map[string]awayTo // by path relative to the mount
}

// awayTo is where a redirected name leads: a path relative to a mount.
type awayTo struct {
	m   *mount
	rel string
}

// find returns where rel leads, by itself or with a directory above it.
func (r *redirects) find(rel string) (awayTo, bool) {
	if !r.some.Load() {
		return awayTo{}, false
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	rest := ""
	for {
		if to, ok := r.names[rel]; ok {
			to.rel += rest
			return to, true
		}
		i := strings.LastIndexByte(rel, '/')
		if i < 0 {
			return awayTo{}, false
		}
		rel, rest = rel[:i], rel[i:]+rest
	}
}

func (r *redirects) has(rel string) bool {
	_, ok := r.find(rel)
	return ok
}

func (r *redirects) add(rel string, to awayTo) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.names == nil {
		r.names = map[string]awayTo{}
	}
	r.names[rel] = to
	r.some.Store(true)
}

func (r *redirects) drop(rel string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.names, rel)
}

// checkRedirects refuses rules whose redirect_to nothing here serves.
func (s *server) checkRedirects(rules Rules) error {
	var problems []error
	for _, rule := range rules.Rules(policy.GroupFile) {
		if rule.Effect == policy.Redirect && s.mountOf(rule.Redirect.Path) == nil {
			problems = append(problems, fmt.Errorf("%s: rule %s: redirect_to %s is in no governed mount", rule.Pos, rule.Name, rule.Redirect.Path))
		}
	}
	return errors.Join(problems...)
}

// target is where a rule sends a path.
func (m *mount) target(rule *policy.Rule, rel string) awayTo {
	to := awayTo{m: m.mountAt(rule.Redirect.Path)}
	dir := strings.Trim(rule.Redirect.Path[len(to.m.path):], "/")
	inside := m.inside(rel)
	if !rule.Redirect.PreserveTree {
		inside = path.Base(inside)
	}
	to.rel = strings.TrimPrefix(path.Join(dir, inside), "/")
	return to
}

// sendAway has the name of a verdict lead to where its rule says. A file that
// the target has under that name goes; with keep the new one begins as a copy
// of what the backing has. The caller holds tree.moves.
func (m *mount) sendAway(tid uint32, v verdict, keep bool) error {
	m.loop.stepAside()
	to := m.target(v.dec.Rule, v.rel)
	err := m.repos.sent(v.rel)
	if err == nil {
		err = m.repos.sent(to.rel)
	}
	if err == nil {
		err = to.m.makeWay(to.rel)
	}
	if err == nil && keep {
		err = m.copyTo(to, v.rel)
	}
	if err != nil {
		v.dec.Effect = policy.Deny
		v.diag.Message = strings.TrimSpace(
			v.diag.Message + " (it could not be redirected to " + shown(to.m.inside(to.rel)) + ": " + err.Error() + ")",
		)
		m.report(tid, "", v)
		return err
	}
	m.backing.away.add(v.rel, to)
	m.report(tid, to.m.inside(to.rel), v)
	return nil
}

// makeWay makes the directories above rel and removes a file that is there.
func (m *mount) makeWay(rel string) error {
	dir, _ := splitPath(rel)
	for at := 0; at <= len(dir) && dir != ""; at++ {
		if at < len(dir) && dir[at] != '/' {
			continue
		}
		p, err := m.backing.locateRaw(dir[:at])
		if err != nil {
			return err
		}
		err = unix.Mkdirat(p.dirfd, p.name, 0o755)
		if err == nil {
			var st unix.Stat_t
			err = m.own(made{p, -1}, &st)
			m.changes.createdHere(dir[:at])
		}
		p.close()
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	p, err := m.backing.locateRaw(rel)
	if err != nil {
		return err
	}
	defer p.close()
	err = unix.Unlinkat(p.dirfd, p.name, 0)
	switch {
	case err == nil:
		m.changes.deletedHere(rel)
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EISDIR):
		err = nil // a directory is gone on with
	}
	go m.invalidate(rel) // ends with its notices to the kernel, which may wait for this very answer
	return err
}

// copyTo makes the file at a target as a copy of what the backing has at rel.
func (m *mount) copyTo(to awayTo, rel string) error {
	old, err := m.backing.locateRaw(rel)
	if err != nil {
		return err
	}
	defer old.close()
	from, err := old.open(unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	source := os.NewFile(uintptr(from), rel)
	defer source.Close()
	var st unix.Stat_t
	if err := unix.Fstat(from, &st); err != nil {
		return err
	}
	p, err := to.m.backing.locateRaw(to.rel)
	if err != nil {
		return err
	}
	defer p.close()
	fd, err := p.open(unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, st.Mode&0o777)
	if err != nil {
		return err
	}
	copied := os.NewFile(uintptr(fd), to.rel)
	if unix.IoctlFileClone(fd, from) != nil {
		_, err = copied.ReadFrom(source)
	}
	err = errors.Join(err, copied.Close())
	if err == nil {
		err = to.m.own(made{p, -1}, &st)
	}
	if err != nil {
		_ = unix.Unlinkat(p.dirfd, p.name, 0) // the failure is what the caller hears
		return err
	}
	to.m.changes.createdHere(to.rel)
	return nil
}

// writeAway handles the redirected write of an existing file. When the name is
// sent away just now, the kernel has to look it up again: ESTALE makes it do so.
// Another name of the same file must not lead a write around the rule.
func (m *mount) writeAway(tid uint32, v verdict, n *node, keep bool) gofuse.Status {
	if !m.backing.away.has(v.rel) {
		if err := m.sendAway(tid, v, keep); err != nil {
			return gofuse.Status(errno(err))
		}
		if !keep {
			if err := m.createEmpty(v.rel); err != nil {
				return gofuse.Status(errno(err))
			}
		}
		return gofuse.Status(syscall.ESTALE)
	}
	p, err := m.backing.locate(v.rel)
	if err != nil {
		return gofuse.Status(errno(err))
	}
	defer p.close()
	var st unix.Stat_t
	if err := p.stat(&st); err != nil || inodeOf(&st) != n.key {
		return gofuse.Status(syscall.ESTALE)
	}
	return gofuse.OK
}

// createEmpty makes the file that a redirected name leads to.
func (m *mount) createEmpty(rel string) error {
	p, err := m.backing.locate(rel)
	if err != nil {
		return err
	}
	defer p.close()
	fd, err := p.open(unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	m.changes.created(rel)
	var st unix.Stat_t
	return m.own(made{p, -1}, &st)
}

// makeAway settles a verdict about a new name: a redirected one is sent away
// and then made there.
func (m *mount) makeAway(tid uint32, v verdict) (away bool, code gofuse.Status) {
	if v.dec.Effect != policy.Redirect {
		return false, m.settle(tid, "", v)
	}
	if m.backing.away.has(v.rel) {
		return true, gofuse.OK
	}
	return true, gofuse.Status(errno(m.sendAway(tid, v, false)))
}

// seenAway has the kernel forget what it knows of the files that redirected
// names lead to, after they were written.
func (m *mount) seenAway(n *node) {
	if !m.backing.away.some.Load() {
		return
	}
	for _, rel := range m.tree.paths(n) {
		if to, ok := m.backing.away.find(rel); ok && to.m != m {
			go to.m.invalidate(to.rel) // ends with its notices to the kernel
		}
	}
}
