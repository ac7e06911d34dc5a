package notify

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"agentsh/policy"
	"agentsh/seccomp/target"
)

// named is a file that a program opens by its name after its exec: a script, or
// the program of the dynamic loader. Commands could exchange it meanwhile, so the
// program gets the content that was decided. See [follower].
type named struct {
	called   string            // as the program is given it
	held     *target.Handle    // the content that was judged
	original *target.Handle    // the file that it was read from
	links    map[string]string // the symbolic links on the way to it, with their texts
	script   bool
	own      bool // held belongs to this alone
	looked   bool
	isPlain  bool // see plain
	memory   *copyUse
}

// close closes what nothing else closes.
func (n *named) close() {
	n.original.Close()
	if n.own {
		n.held.Close()
	}
	n.memory.release()
}

// maxCopied is the largest file that is copied to be held, in bytes.
const maxCopied = 64 << 20

// hold keeps the content of a file that h was found for by l, unless no command
// can change what the name leads to. It takes over h, and returns the handle to
// judge.
func (s *subject) hold(t *target.Target, l target.Lookup, h *target.Handle, n named) (*target.Handle, error) {
	way, err := t.Walk(l, h)
	if err != nil || way.Fixed {
		return h, err
	}
	const hint = "give it to its interpreter as an argument"
	limit := min(h.Stat.Size+memoryStep, maxCopied)
	if h.Stat.Size > maxCopied {
		return h, fmt.Errorf("hold %s: %w: at most %d bytes (%s): %w", h.Path, target.ErrTooLarge, int64(maxCopied), hint, unix.EACCES)
	}
	part, err := s.memory.reserve(limit)
	if err != nil {
		return h, fmt.Errorf("hold %s: %w (%s): %w", h.Path, err, hint, unix.EACCES)
	}
	held, err := h.Hold(limit)
	if err != nil {
		part.release()
		return h, fmt.Errorf("%w (%s): %w", err, hint, unix.EACCES)
	}
	n.held, n.original, n.links, n.memory = held, h, way.Links, part
	s.named = append(s.named, n)
	return held, nil
}

// pendingScript is a script that was judged and is opened by a later program, as with
// "#!/usr/bin/env bash".
type pendingScript struct {
	called string
	digest [sha256.Size]byte
	by     target.Process // the only process that may be that program; zero: any
	// arrived says that the program which was given it has opened it, and gives it
	// to nothing else; nil: it never does.
	arrived *atomic.Bool
}

// pendingScripts is what the programs that this one executes are given of it.
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
		digest, err := digestOf(a.named[i].held)
		if err != nil {
			return nil, err
		}
		c := pendingScript{called: a.named[i].called, digest: digest}
		if opens != 0 && len(a.named) == 1 && !a.givenToScript() {
			c.by, c.arrived = a.process.Process, a.arrived
		}
		out = append(out, c)
	}
	return out, nil
}

func digestOf(h *target.Handle) (sum [sha256.Size]byte, err error) {
	f, err := h.Open()
	if err != nil {
		return sum, err
	}
	defer f.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		return sum, fmt.Errorf("read %s: %w", h.Path, err)
	}
	hash.Sum(sum[:0])
	return sum, nil
}

// receive holds the scripts that the caller was started with and gives on.
func (a *attempt) receive(t *target.Target) error {
	if a.caller.image == nil {
		return nil
	}
	for _, c := range a.caller.pendingScript {
		if c.arrived != nil && c.arrived.Load() {
			continue
		}
		if c.by != (target.Process{}) && c.by != a.process.Process || !a.gives(c.called) {
			continue
		}
		l := target.Lookup{Dir: unix.AT_FDCWD, Path: c.called}
		h, err := t.Resolve(l)
		if err != nil {
			return fmt.Errorf("the script %s that was decided: %w", c.called, err)
		}
		before := len(a.named)
		h, err = a.hold(t, l, h, named{called: c.called, script: true, own: true})
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
		if !bytes.Equal(digest[:], c.digest[:]) {
			return fmt.Errorf("%w: %s is not the script that was decided: %w", errSwitched, c.called, unix.EACCES)
		}
	}
	return nil
}

// gives reports whether the program is given a name, and not judged for it.
func (a *attempt) gives(called string) bool {
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

// of returns the first bytes of a file that tell whether it is a script.
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

// keep remembers the first bytes of a file whose mount is read-only.
func (k *shebangCache) keep(h *target.Handle, head []byte) {
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
