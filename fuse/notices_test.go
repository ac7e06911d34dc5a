package fuse

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What the host and the operator change is seen at the next use: a kernel that cannot be told
// of it keeps nothing.
func TestAKernelWithoutNoticesKeepsNothing(t *testing.T) {
	s := start(t, options{noNotices: true, watched: -1, cacheSeconds: 600})
	s.seed(map[string]string{"dir/file": "text", "dir/denied": "text"})
	if _, err := os.Stat(s.path("dir/new")); !errors.Is(err, unix.ENOENT) {
		t.Errorf("a missing name: %v", err)
	}
	info, err := os.Stat(s.path("dir/file"))
	must(t, err)
	if info.Size() != 4 {
		t.Errorf("%d bytes", info.Size())
	}
	s.seed(map[string]string{"dir/new": "text", "dir/file": "longer text"})
	if _, err := os.Stat(s.path("dir/new")); err != nil {
		t.Errorf("a name that the host made: %v", err)
	}
	if info, err = os.Stat(s.path("dir/file")); err != nil || info.Size() != 11 {
		t.Errorf("a file that the host wrote: %v, %v", info, err)
	}
	_, err = os.Stat(s.path("dir/denied"))
	must(t, err)
	s.reload(t, `
file_rules:
  - {name: no, paths: ["WS/dir/denied"], operations: ["*"], decision: deny}
  - {name: rest, paths: ["WS", "WS/**"], operations: ["*"], decision: allow}
`)
	if _, err := os.Stat(s.path("dir/denied")); !errors.Is(err, unix.EACCES) {
		t.Errorf("a name that the rules deny now: %v", err)
	}
}

// A kernel that takes no notices keeps the names of directories: gVisor removes one whose lookup
// a signal interrupts, below the processes that work in it.
func TestAKernelWithoutNoticesKeepsNamesOfDirectories(t *testing.T) {
	a := attributes{kernel: &kernel{}, redirects: &redirects{}, watched: watchedTime, unwatched: unwatchedTime}
	if dir, file := a.nameAge(unix.S_IFDIR, true), a.nameAge(unix.S_IFREG, true); dir != unmappedTime || file != 0 {
		t.Errorf("a directory for %v, a file for %v", dir, file)
	}
	a.redirects.some.Store(true)
	if dir := a.nameAge(unix.S_IFDIR, true); dir != 0 {
		t.Errorf("a directory that may be redirected for %v", dir)
	}
	a.kernel.caches = true
	if dir := a.nameAge(unix.S_IFDIR, false); dir != unwatchedTime {
		t.Errorf("with notices a directory for %v", dir)
	}
}

func TestAKernelThatTakesNoNoticesMustBeAllowed(t *testing.T) {
	var refusal error
	start(t, options{noNotices: true, refusal: &refusal})
	if refusal == nil || !strings.Contains(refusal.Error(), "takes no notices") {
		t.Errorf("%v", refusal)
	}
}
