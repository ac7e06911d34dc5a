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

	"agentsh/fuse/tree"
	"agentsh/policy"
)

// redirector applies decisions to redirect.
type redirector struct {
	tree    *tree.Tree
	files   *files
	access  *access
	kernel  *kernel
	repos   *repositories
	mountAt func(path string) *mount // returns the mount that serves a path inside the sandbox
}

// redirects are the redirected names of one mount. A name is redirected from the first
// write that a rule redirects until the session ends. All operations on the name then
// use its target. The file that the backing has under the name stays unchanged.
type redirects struct {
	some atomic.Bool // a name is redirected

	mu    sync.RWMutex
	names map[string]target // by path relative to the mount
}

// target is the target of a redirected name: a path relative to a mount.
type target struct {
	mount *mount
	rel   string
}

// find returns the target of rel if rel or a directory above it is redirected.
func (r *redirects) find(rel string) (target, bool) {
	if !r.some.Load() {
		return target{}, false
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
			return target{}, false
		}
		rel, rest = rel[:i], rel[i:]+rest
	}
}

func (r *redirects) has(rel string) bool {
	_, ok := r.find(rel)
	return ok
}

func (r *redirects) add(rel string, to target) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.names == nil {
		r.names = map[string]target{}
	}
	r.names[rel] = to
	r.some.Store(true)
}

func (r *redirects) drop(rel string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.names, rel)
}

// checkRedirects returns an error if no mount serves the redirect_to path of a rule.
func (s *server) checkRedirects(rules Rules) error {
	var problems []error
	for _, rule := range rules.Rules(policy.GroupFile) {
		if rule.Effect == policy.Redirect && s.mountOf(rule.Redirect.Path) == nil {
			problems = append(problems, fmt.Errorf("%s: rule %s: redirect_to %s is in no governed mount", rule.Pos, rule.Name, rule.Redirect.Path))
		}
	}
	return errors.Join(problems...)
}

// target returns the target of a path under a redirect rule.
func (r *redirector) target(rule *policy.Rule, rel string) target {
	to := target{mount: r.mountAt(rule.Redirect.Path)}
	dir := strings.Trim(rule.Redirect.Path[len(to.mount.files.path):], "/")
	inside := r.files.inside(rel)
	if !rule.Redirect.PreserveTree {
		inside = path.Base(inside)
	}
	to.rel = strings.TrimPrefix(path.Join(dir, inside), "/")
	return to
}

// send redirects the name of a verdict to the target of its rule. An existing file at
// the target is removed. With keep the new file starts as a copy of the file in the
// backing. The caller holds tree.Moves.
func (r *redirector) send(tid uint32, v verdict, keep bool) error {
	r.kernel.StepAside()
	to := r.target(v.dec.Rule, v.rel)
	err := r.repos.mayRedirect(v.rel)
	if err == nil {
		err = r.repos.mayRedirect(to.rel)
	}
	if err == nil {
		err = prepareTarget(to.mount.files, to.mount.kernel, to.rel)
	}
	if err == nil && keep {
		err = r.copyTo(to, v.rel)
	}
	if err != nil {
		v.dec.Effect = policy.Deny
		v.diag.Message = strings.TrimSpace(
			v.diag.Message + " (it could not be redirected to " + shown(to.mount.files.inside(to.rel)) + ": " + err.Error() + ")",
		)
		r.access.report(tid, "", v)
		return err
	}
	r.files.redirects.add(v.rel, to)
	r.access.report(tid, to.mount.files.inside(to.rel), v)
	return nil
}

// prepareTarget makes the directories above rel and removes a file at rel.
func prepareTarget(f *files, k *kernel, rel string) error {
	dir, _ := tree.Split(rel)
	for at := 0; at <= len(dir) && dir != ""; at++ {
		if at < len(dir) && dir[at] != '/' {
			continue
		}
		p, err := f.backing.Locate(dir[:at])
		if err != nil {
			return err
		}
		err = unix.Mkdirat(p.DirFD, p.Name, 0o755)
		if err == nil {
			var st unix.Stat_t
			err = f.giveOwner(made{p, -1, false}, &st)
			f.record.Created(dir[:at])
		}
		p.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	p, err := f.backing.Locate(rel)
	if err != nil {
		return err
	}
	defer p.Close()
	err = unix.Unlinkat(p.DirFD, p.Name, 0)
	switch {
	case err == nil:
		f.record.Deleted(rel)
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EISDIR):
		err = nil // an existing directory is used
	}
	go k.invalidate(rel) // ends after its notices to the kernel, which may wait for the answer to this request
	return err
}

// copyTo creates the file at a target as a copy of the backing's file at rel.
func (r *redirector) copyTo(to target, rel string) error {
	old, err := r.files.backing.Locate(rel)
	if err != nil {
		return err
	}
	defer old.Close()
	from, err := old.Open(unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	source := os.NewFile(uintptr(from), rel)
	defer source.Close()
	var st unix.Stat_t
	if err := unix.Fstat(from, &st); err != nil {
		return err
	}
	p, err := to.mount.files.backing.Locate(to.rel)
	if err != nil {
		return err
	}
	defer p.Close()
	fd, err := p.Open(unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, st.Mode&0o777)
	if err != nil {
		return err
	}
	copied := os.NewFile(uintptr(fd), to.rel)
	if unix.IoctlFileClone(fd, from) != nil {
		_, err = copied.ReadFrom(source)
	}
	err = errors.Join(err, copied.Close())
	if err == nil {
		err = to.mount.files.giveOwner(made{p, -1, false}, &st)
	}
	if err != nil {
		_ = unix.Unlinkat(p.DirFD, p.Name, 0) // the caller gets the first error
		return err
	}
	to.mount.files.record.Created(to.rel)
	return nil
}

// write handles the redirected write of an existing file. If this write redirects the
// name, ESTALE makes the kernel look the name up again. Other names of the same file
// must not bypass the rule.
func (r *redirector) write(tid uint32, v verdict, n *tree.Node, keep bool) gofuse.Status {
	if !r.files.redirected(v.rel) {
		if err := r.send(tid, v, keep); err != nil {
			return gofuse.Status(errno(err))
		}
		if !keep {
			if err := r.createTarget(v.rel); err != nil {
				return gofuse.Status(errno(err))
			}
		}
		return gofuse.Status(syscall.ESTALE)
	}
	p, err := r.files.locate(v.rel)
	if err != nil {
		return gofuse.Status(errno(err))
	}
	defer p.Close()
	var st unix.Stat_t
	if err := p.Stat(&st); err != nil || !r.tree.Same(n, &st) {
		return gofuse.Status(syscall.ESTALE)
	}
	return gofuse.OK
}

// createTarget creates the file at the target of a redirected name.
func (r *redirector) createTarget(rel string) error {
	p, err := r.files.locate(rel)
	if err != nil {
		return err
	}
	defer p.Close()
	fd, err := p.Open(unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer tree.CloseFD(fd)
	r.files.created(rel)
	var st unix.Stat_t
	return r.files.giveOwner(made{p, -1, false}, &st)
}

// make applies a verdict about a new name. If the verdict is a redirect, it redirects
// the name and creates the file at the target.
func (r *redirector) make(tid uint32, v verdict) (away bool, code gofuse.Status) {
	if v.dec.Effect != policy.Redirect {
		return false, r.access.apply(tid, "", v)
	}
	if r.files.redirected(v.rel) {
		return true, gofuse.OK
	}
	return true, gofuse.Status(errno(r.send(tid, v, false)))
}

// invalidateTargets makes the kernel drop its caches of the target files of a node's
// redirected names after a write.
func (r *redirector) invalidateTargets(n *tree.Node) {
	if !r.files.redirects.some.Load() {
		return
	}
	for _, rel := range r.tree.Paths(n) {
		if to, ok := r.files.redirects.find(rel); ok && to.mount.files != r.files {
			go to.mount.kernel.invalidate(to.rel) // ends with its notices to the kernel
		}
	}
}
