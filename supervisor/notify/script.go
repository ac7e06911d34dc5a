package notify

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"agentsh/policy"
	"agentsh/seccomp/target"
)

// named is a file that a program opens by its name after its exec: a script, or
// the program of the dynamic loader. Commands could exchange it meanwhile, so the
// program gets the content that was judged. See [follower].
type named struct {
	called   string            // as the program is given it
	held     *target.Handle    // the content that was judged
	original *target.Handle    // the file that it was read from
	links    map[string]string // the symbolic links on the way to it, with their texts
	script   bool
	own      bool // held belongs to this alone
}

// close closes what nothing else closes.
func (n *named) close() {
	n.original.Close()
	if n.own {
		n.held.Close()
	}
}

// maxNamed is the largest file that is copied to be held, in bytes.
const maxNamed = 64 << 20

// hold keeps the content of a file that h was found for by l, unless no command
// can change what the name leads to. It takes over h, and returns the handle to
// judge.
func (s *subject) hold(t *target.Target, l target.Lookup, h *target.Handle, n named) (*target.Handle, error) {
	way, err := t.Walk(l, h)
	if err != nil || way.Fixed {
		return h, err
	}
	held, err := h.Hold(maxNamed)
	if err != nil {
		return h, fmt.Errorf("%w (give it to its interpreter as an argument): %w", err, unix.EACCES)
	}
	n.held, n.original, n.links = held, h, way.Links
	s.named = append(s.named, n)
	return held, nil
}

// anyNumberOfOpens says that it is not known how often a program opens a script
// before it runs it.
const anyNumberOfOpens = -1

// scriptOpens is how often an interpreter opens its script before it runs it; 0:
// it never does, but executes another program that is given the script.
var scriptOpens = map[string]int{
	"sh": 1, "bash": 1, "dash": 1, "ash": 1, "rbash": 1,
	"awk": 1, "mawk": 1, "gawk": 1, "sed": 1, "make": 1, "gmake": 1, "perl": 1, "tclsh": 1,
	"python": 2, // once to see whether it is an archive
	"env":    0, "nice": 0, "nohup": 0, "timeout": 0, "setsid": 0, "stdbuf": 0, "ionice": 0, "chrt": 0, "taskset": 0,
}

// opens is how often the program opens what it is named before that runs.
func (s *subject) opens() int {
	if len(s.named) != 1 {
		return anyNumberOfOpens
	}
	if !s.named[0].script {
		return 1 // the dynamic loader
	}
	name := path.Base(s.files[len(s.files)-1].Path)
	if argv := s.finalArgv(); policy.MultiCallName(name) {
		name = path.Base(argv[0])
		if policy.MultiCallName(name) && len(argv) > 1 {
			name = path.Base(argv[1])
		}
	}
	if n, known := scriptOpens[strings.TrimRight(name, "0123456789.")]; known {
		return n
	}
	return anyNumberOfOpens
}

// follows reports whether the program has to be followed to its files.
func (s *subject) follows() bool { return len(s.named) > 0 && s.opens() != 0 }

// carried is a script that was judged and is opened by a later program, as with
// "#!/usr/bin/env bash".
type carried struct {
	called string
	digest [sha256.Size]byte
	by     target.Process // the only process that may be that program; zero: any
}

// carries is what the programs that this one executes are given of it.
func (a *attempt) carries() ([]carried, error) {
	if len(a.named) == 0 {
		return nil, nil
	}
	opens := a.opens()
	if opens > 0 {
		return nil, nil
	}
	var out []carried
	for i := range a.named {
		if !a.named[i].script {
			continue
		}
		digest, err := digestOf(a.named[i].held)
		if err != nil {
			return nil, err
		}
		c := carried{called: a.named[i].called, digest: digest}
		if opens < 0 && len(a.named) == 1 {
			c.by = a.process.Process
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
	for _, c := range a.caller.carried {
		if c.by != (target.Process{}) && c.by != a.process.Process || !a.gives(c.called) {
			continue
		}
		l := target.Lookup{Dir: unix.AT_FDCWD, Path: c.called}
		h, err := t.Resolve(l)
		if err != nil {
			return fmt.Errorf("the script %s that was judged: %w", c.called, err)
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
			return fmt.Errorf("%w: %s is not the script that was judged: %w", errSwitched, c.called, unix.EACCES)
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
