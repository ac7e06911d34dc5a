package notify

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"agentsh/policy"
	"agentsh/seccomp/target"
)

// named is a file that a program opens by its name after its exec: a script, or the
// program of a dynamic loader. Commands could replace the file before that. The program
// therefore gets a copy of the content that was evaluated. See [follower].
type named struct {
	called   string            // as the program gets it
	content  *target.Handle    // that was evaluated
	original *target.Handle    // the file that it was copied from
	links    map[string]string // texts of the symbolic links that lead to the file
	script   bool
	separate bool // content is in no other list of the attempt
	scanned  bool // opensOnce is known: see contentOpensOnce
	once     bool
	use      *copyUse
}

// close closes the files that belong to n alone.
func (n *named) close() {
	n.original.Close()
	if n.separate {
		n.content.Close()
	}
	n.use.release()
}

// maxCopied is the largest file that is copied, in bytes.
const maxCopied = 64 << 20

// copy copies the file h, which was found by l. If no command can change what the name
// leads to, it copies nothing. It takes over h and returns the handle to evaluate.
func (s *subject) copy(t *target.Target, l target.Lookup, h *target.Handle, n named) (*target.Handle, error) {
	route, err := t.Walk(l, h)
	if err != nil || route.Fixed {
		return h, err
	}
	const hint = "give it to its interpreter as an argument"
	limit := min(h.Stat.Size+copyOverhead, maxCopied)
	if h.Stat.Size > maxCopied {
		return h, fmt.Errorf("copy %s: %w: at most %d bytes (%s): %w", h.Path, target.ErrTooLarge, int64(maxCopied), hint, unix.EACCES)
	}
	use, err := s.budget.reserve(limit)
	if err != nil {
		return h, fmt.Errorf("copy %s: %w (%s): %w", h.Path, err, hint, unix.EACCES)
	}
	content, err := h.Copy(limit)
	if err != nil {
		use.release()
		return h, fmt.Errorf("%w (%s): %w", err, hint, unix.EACCES)
	}
	n.content, n.original, n.links, n.use = content, h, route.Links, use
	s.named = append(s.named, n)
	return content, nil
}

// pendingScript is a script that was evaluated and that a later program opens, as with
// "#!/usr/bin/env bash".
type pendingScript struct {
	called string
	digest [sha256.Size]byte
	by     target.Process // the only process that may open it; zero: any
	// arrived says that the program which was given the script has opened it, and passes
	// it to no other program. Nil: that never happens.
	arrived *atomic.Bool
}

// pendingScripts returns the scripts that programs executed by this one may open.
func (a *attempt) pendingScripts() ([]pendingScript, error) {
	if len(a.named) == 0 {
		return nil, nil
	}
	opens := a.opens()
	if opens != 0 {
		a.arrived = &atomic.Bool{}
	}
	var out []pendingScript
	for i := range a.named {
		if !a.named[i].script {
			continue
		}
		digest, err := digestOf(a.named[i].content)
		if err != nil {
			return nil, err
		}
		p := pendingScript{called: a.named[i].called, digest: digest}
		if opens != 0 && len(a.named) == 1 && !a.givenToScript() {
			p.by, p.arrived = a.process.Process, a.arrived
		}
		out = append(out, p)
	}
	return out, nil
}

func digestOf(h *target.Handle) (sum [sha256.Size]byte, err error) {
	hash := sha256.New()
	if _, err := h.CopyTo(hash, math.MaxInt64); err != nil {
		return sum, err
	}
	hash.Sum(sum[:0])
	return sum, nil
}

// copyPending copies the scripts that the caller was started with, if it now passes them
// to another program.
func (a *attempt) copyPending(t *target.Target) error {
	if a.caller.image == nil {
		return nil
	}
	for _, p := range a.caller.pending {
		if p.arrived != nil && p.arrived.Load() {
			continue
		}
		if p.by != (target.Process{}) && p.by != a.process.Process || !a.passes(p.called) {
			continue
		}
		l := target.Lookup{Dir: unix.AT_FDCWD, Path: p.called}
		h, err := t.Resolve(l)
		if err != nil {
			return fmt.Errorf("the script %s that was evaluated: %w", p.called, err)
		}
		before := len(a.named)
		h, err = a.copy(t, l, h, named{called: p.called, script: true, separate: true})
		if len(a.named) == before {
			defer h.Close()
		}
		if err != nil {
			return err
		}
		digest, err := digestOf(h)
		if err != nil {
			return err
		}
		if !bytes.Equal(digest[:], p.digest[:]) {
			return fmt.Errorf("%w: %s is not the script that was evaluated: %w", errSwitched, p.called, unix.EACCES)
		}
	}
	return nil
}

// passes reports whether the program gets a name as an argument that is not in a.named.
func (a *attempt) passes(called string) bool {
	for i := range a.named {
		if a.named[i].called == called {
			return false
		}
	}
	for _, arg := range a.finalArgv()[1:] {
		if strings.HasSuffix(arg, called) {
			return true
		}
	}
	return false
}

// shebangs caches the first bytes of programs on read-only mounts. Those are executed
// again and again, and no command can change them.
var shebangs = shebangCache{known: map[fileVersion][]byte{}}

// shebangCache holds the first bytes of files by version. It is safe for concurrent use.
type shebangCache struct {
	mu    sync.Mutex
	known map[fileVersion][]byte
}

// maxShebangs bounds the files of a cache: 256 bytes each.
const maxShebangs = 1 << 10

// of returns the first bytes of a file, which show whether it is a script.
func (k *shebangCache) of(h *target.Handle) ([]byte, error) {
	k.mu.Lock()
	head, known := k.known[versionOf(h)]
	k.mu.Unlock()
	if known {
		if fixed, err := h.ReadOnly(); err == nil && fixed {
			return head, nil
		}
	}
	return h.Head(policy.ShebangSize)
}

// add stores the first bytes of a file whose mount is read-only.
func (k *shebangCache) add(h *target.Handle, head []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.known) >= maxShebangs {
		clear(k.known)
	}
	k.known[versionOf(h)] = head
}

func versionOf(h *target.Handle) fileVersion {
	return fileVersion{fileID{h.Stat.Dev, h.Stat.Ino}, h.Stat.Size, h.Stat.Mtim, h.Stat.Ctim}
}

// quickPrograms are programs that workers evaluated and nobody has changed since. All
// that an evaluation reads of them is in memory.
var quickPrograms = quickSet{known: map[fileVersion]bool{}}

// quickSet is safe for concurrent use.
type quickSet struct {
	mu    sync.Mutex
	known map[fileVersion]bool // false: it was found that a call has to wait for it
}

// maxQuickSize is the largest program in bytes whose content may be read each time, because
// its mount is not read-only.
const maxQuickSize = 1 << 20

// add adds the program of an exec that was accepted, unless a call has to wait for it.
func (q *quickSet) add(a *attempt) {
	h := a.files[0]
	if len(a.files) > 1 || a.loader {
		return
	}
	q.mu.Lock()
	_, known := q.known[versionOf(h)]
	q.mu.Unlock()
	if known {
		return
	}
	quick := h.Quick()
	if quick {
		fixed, err := h.ReadOnly()
		quick = err == nil && (fixed || h.Stat.Size <= maxQuickSize)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.known) >= maxShebangs {
		clear(q.known)
	}
	q.known[versionOf(h)] = quick
}

// has reports whether the program with this status is in the set.
func (q *quickSet) has(s *unix.Statx_t) bool {
	at := func(t unix.StatxTimestamp) unix.Timespec { return unix.Timespec{Sec: t.Sec, Nsec: int64(t.Nsec)} }
	v := fileVersion{fileID{unix.Mkdev(s.Dev_major, s.Dev_minor), s.Ino}, int64(s.Size), at(s.Mtime), at(s.Ctime)}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.known[v]
}
