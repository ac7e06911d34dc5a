package notify

import (
	"fmt"
	"maps"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"agentsh/seccomp/target"
)

// A script may be called by a relative name. Other processes that share the working
// directory can change it, and the directory itself can be renamed. An open by the
// relative name therefore always gets the file that was evaluated.

// relativeNames are the files that were called by a relative name.
type relativeNames struct {
	files map[string]*named            // by that name
	given map[*named]bool              // those that were opened
	cwd   string                       // the working directory when they were evaluated
	links map[*named]map[string]string // the links of each then
	dirs  map[string]bool              // other names of the working directory that the process read
}

// maxDirectories bounds the names of its working directory that a process reads before
// it opens its script.
const maxDirectories = 1024

func newRelativeNames(a *attempt) relativeNames {
	r := relativeNames{
		files: map[string]*named{},
		given: map[*named]bool{},
		cwd:   a.request.Cwd,
		links: map[*named]map[string]string{},
		dirs:  map[string]bool{},
	}
	for i := range a.named {
		if n := &a.named[i]; !path.IsAbs(n.called) {
			r.files[path.Clean(n.called)] = n
			r.links[n] = maps.Clone(n.links)
		}
	}
	return r
}

// file returns the file of a relative name, or nil. When the interpreter has
// opened the file as often as it opens a script, the name may refer to another
// file.
func (r *relativeNames) file(name string, left int) *named {
	n := r.files[path.Clean(name)]
	if left == anyNumberOfOpens && r.given[n] {
		return nil
	}
	return n
}

// addDirectory notes a name of the working directory that getcwd returned. The process
// may make absolute names with it.
func (f *follower) addDirectory(tid int, call *followed, result int64) error {
	if result <= 0 || len(f.relative.given) == len(f.relative.files) {
		return nil
	}
	dir, err := target.Text(tid, call.args[0], target.MaxPath)
	if err != nil || dir == f.relative.cwd || !path.IsAbs(dir) || f.relative.dirs[dir] {
		return nil //nolint:nilerr // another thread unmapped the memory
	}
	if len(f.relative.dirs) == maxDirectories {
		return fmt.Errorf("its working directory had %d names before it opened its script", maxDirectories)
	}
	f.relative.dirs[dir] = true
	moved := func(name string) (string, bool) {
		rest, inside := strings.CutPrefix(name, f.relative.cwd+"/")
		return path.Join(dir, rest), inside
	}
	for called, n := range f.relative.files {
		if f.relative.given[n] {
			continue
		}
		f.names[path.Join(dir, called)] = n
		if name, inside := moved(n.content.Path); inside {
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
