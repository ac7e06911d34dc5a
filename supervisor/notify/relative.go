package notify

import (
	"fmt"
	"maps"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"agentsh/seccomp/target"
)

// A script may be called by a relative name. The working directory can get
// another name meanwhile, and processes that share it can change it, so what is
// asked for by that name is what was decided, wherever it leads.

// relativeNames are the files that were called by a relative name, by it.
type relativeNames struct {
	files map[string]*named
	given map[*named]bool // they were opened
	cwd   string          // the working directory when they were judged
	links map[*named]map[string]string
	told  map[string]bool // the names that the process was told of it since
}

// maxDirectories bounds the names of its working directory that a process is told
// before it opens its script.
const maxDirectories = 1024

func newRelativeNames(a *attempt) relativeNames {
	r := relativeNames{
		files: map[string]*named{},
		given: map[*named]bool{},
		cwd:   a.request.Cwd,
		links: map[*named]map[string]string{},
		told:  map[string]bool{},
	}
	for i := range a.named {
		if n := &a.named[i]; !path.IsAbs(n.called) {
			r.files[path.Clean(n.called)] = n
			r.links[n] = maps.Clone(n.links)
		}
	}
	return r
}

// file is what a relative name stands for; nil: nothing. Once a file was opened
// as often as its interpreter is known to, the name may mean another one.
func (r *relativeNames) file(name string, left int) *named {
	n := r.files[path.Clean(name)]
	if left == anyNumberOfOpens && r.given[n] {
		return nil
	}
	return n
}

// learnDirectory notes the name that a process is told of its working directory:
// it may make absolute names of it.
func (f *follower) learnDirectory(tid int, call *followed, result int64) error {
	if result <= 0 || len(f.relative.given) == len(f.relative.files) {
		return nil
	}
	dir, err := target.Text(tid, call.args[0], target.MaxPath)
	if err != nil || dir == f.relative.cwd || !path.IsAbs(dir) || f.relative.told[dir] {
		return nil //nolint:nilerr // another thread took the memory away
	}
	if len(f.relative.told) == maxDirectories {
		return fmt.Errorf("its working directory had %d names before it opened its script", maxDirectories)
	}
	f.relative.told[dir] = true
	moved := func(name string) (string, bool) {
		rest, inside := strings.CutPrefix(name, f.relative.cwd+"/")
		return path.Join(dir, rest), inside
	}
	for called, n := range f.relative.files {
		if f.relative.given[n] {
			continue
		}
		f.names[path.Join(dir, called)] = n
		if name, inside := moved(n.held.Path); inside {
			f.names[name] = n
		}
		for link, text := range f.relative.links[n] {
			if name, inside := moved(link); inside {
				n.links[name] = text
			}
		}
	}
	return nil
}

// getcwdCall is getcwd(2).
var getcwdCall = pathCall{kind: callGetcwd, dir: -1}

func (f *follower) enterGetcwd(tid int, info target.Syscall) bool {
	if info.Number != unix.SYS_GETCWD || len(f.relative.files) == 0 || f.ending {
		return false
	}
	f.calls[tid] = &followed{pathCall: getcwdCall, number: info.Number, args: info.Args}
	return true
}
