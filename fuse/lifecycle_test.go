package fuse

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/fuse/tree"
	"agentsh/internal/wire"
)

func TestAKilledServerLeavesADeadMountThatUnmounts(t *testing.T) {
	s := start(t, options{})
	must(t, os.WriteFile(s.path("f"), []byte("durable"), 0o644))
	f, err := os.OpenFile(s.path("f"), os.O_RDWR, 0)
	must(t, err)
	must(t, f.Sync())
	must(t, s.server.Process.Kill())
	s.server.Wait()
	if _, err := os.ReadDir(s.dir); !errors.Is(err, unix.ENOTCONN) {
		t.Errorf("listing a dead mount: got %v, want ENOTCONN", err)
	}
	if _, err := os.Stat(s.path("g")); !errors.Is(err, unix.ENOTCONN) {
		t.Errorf("stat in a dead mount: got %v, want ENOTCONN", err)
	}
	f.Close()
	must(t, unix.Unmount(s.dir, 0))
	if got, _ := os.ReadFile(s.back("f")); string(got) != "durable" {
		t.Errorf("the backing holds %q", got)
	}
	<-s.control.Done()
	if err := s.control.Baseline(t.Context()); !errors.Is(err, ErrServerGone) {
		t.Errorf("a call to a dead server: got %v", err)
	}
}

func TestTheServerEndsWithItsControlSocket(t *testing.T) {
	s := start(t, options{})
	must(t, os.WriteFile(s.path("f"), nil, 0o644))
	s.control.Close()
	if err := s.server.Wait(); err != nil {
		t.Errorf("the server ended with %v", err)
	}
	if _, err := os.ReadDir(s.dir); !errors.Is(err, unix.ENOTCONN) {
		t.Errorf("listing: got %v, want ENOTCONN", err)
	}
}

func TestAnUnmountLeavesTheServerAnswering(t *testing.T) {
	s := start(t, options{})
	must(t, os.WriteFile(s.path("f"), nil, 0o644))
	must(t, unix.Unmount(s.dir, 0))
	list, err := s.control.Changes(t.Context(), "ws")
	if err != nil || len(list) != 1 || list[0].Path != "f" {
		t.Errorf("changes after the unmount: %v %v", list, err)
	}
}

func TestOneDeniedFileIsGoverned(t *testing.T) {
	backing := filepath.Join(t.TempDir(), "shadow")
	must(t, os.WriteFile(backing, []byte("root:x"), 0o600))
	s := start(t, options{backing: backing, file: true, policy: `
file_rules:
  - {name: stat-it, paths: ["WS"], operations: [stat], decision: allow}
  - {name: no-shadow, paths: ["WS"], operations: ["*"], decision: deny}
`})
	if _, err := os.ReadFile(s.dir); !errors.Is(err, unix.EACCES) {
		t.Errorf("read: got %v, want EACCES", err)
	}
	if err := os.WriteFile(s.dir, nil, 0o600); !errors.Is(err, unix.EACCES) {
		t.Errorf("write: got %v, want EACCES", err)
	}
	if err := os.Chmod(s.dir, 0o777); !errors.Is(err, unix.EACCES) {
		t.Errorf("chmod: got %v, want EACCES", err)
	}
	e := s.waitEvent(func(e wire.Event) bool { return e.Op == "read" })
	if e.Path != s.dir || e.Rule == nil || e.Rule.Name != "no-shadow" || !strings.HasPrefix(e.Rule.Position(), "test.yaml:") {
		t.Errorf("event %+v", e)
	}
}

func TestOneAllowedFileIsServed(t *testing.T) {
	backing := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(backing, []byte("text"), 0o644))
	s := start(t, options{backing: backing, file: true, policy: `
file_rules:
  - {name: all, paths: ["WS"], operations: ["*"], decision: allow}
`})
	if got, err := os.ReadFile(s.dir); err != nil || string(got) != "text" {
		t.Errorf("read %q, %v", got, err)
	}
	must(t, os.WriteFile(s.dir, []byte("new"), 0o644))
	must(t, os.Chmod(s.dir, 0o600))
	must(t, unix.Truncate(s.dir, 2))
	if got, err := os.ReadFile(backing); err != nil || string(got) != "ne" {
		t.Errorf("the backing holds %q, %v", got, err)
	}
	list, err := s.control.Changes(t.Context(), "ws")
	if err != nil || len(list) != 1 || list[0].Kind != wire.Modified {
		t.Errorf("changes %v, %v", list, err)
	}
}

func TestWhatTheSupervisorWroteIsSeenAfterInvalidate(t *testing.T) {
	s := start(t, options{})
	s.seed(map[string]string{"d/f": "old", "d/gone": "x"})
	read := func(rel string) string {
		data, err := os.ReadFile(s.path(rel))
		if err != nil {
			return plain(err)
		}
		return string(data)
	}
	list := func() string {
		entries, _ := os.ReadDir(s.path("d"))
		return fmt.Sprint(entries)
	}
	if got := read("d/f") + read("d/new") + read("d/gone") + list(); !strings.Contains(got, "oldno such file or directoryx") {
		t.Fatalf("at first: %s", got)
	}
	must(t, os.WriteFile(s.back("d/f"), []byte("newer"), 0o644))
	must(t, os.WriteFile(s.back("d/new"), []byte("made"), 0o644))
	must(t, os.Remove(s.back("d/gone")))
	must(t, s.control.Invalidate(t.Context(), s.path("d/f"), s.path("d/new"), s.path("d/gone")))
	if got := read("d/f") + " " + read("d/new") + " " + read("d/gone"); got != "newer made no such file or directory" {
		t.Errorf("after invalidate: %s", got)
	}
	if got := list(); strings.Contains(got, "gone") || !strings.Contains(got, "new") {
		t.Errorf("listing after invalidate: %s", got)
	}
	if changes, err := s.control.Changes(t.Context(), "ws"); err != nil || len(changes) != 0 {
		t.Errorf("the supervisor's writes are in the record: %v %v", changes, err)
	}
	must(t, os.RemoveAll(s.back("d")))
	must(t, s.control.Invalidate(t.Context(), s.dir))
	if got := read("d/f"); got != "no such file or directory" {
		t.Errorf("after a tree went: %s", got)
	}
	if err := s.control.Invalidate(t.Context(), "/elsewhere"); err == nil {
		t.Error("a path outside every mount was accepted")
	}
}

func TestABaselineStartsTheRecordAnew(t *testing.T) {
	s := start(t, options{})
	s.seed(map[string]string{"b": "x"})
	must(t, os.WriteFile(s.path("a"), []byte("1"), 0o644))
	f, err := os.OpenFile(s.path("b"), os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	defer f.Close()
	must(t, s.control.Baseline(t.Context()))
	if list, err := s.control.Changes(t.Context(), "ws"); err != nil || len(list) != 0 {
		t.Errorf("after the baseline: %v %v", list, err)
	}
	f.WriteString("more") // seen while the file is still open
	must(t, os.WriteFile(s.path("a"), []byte("2"), 0o644))
	list, err := s.control.Changes(t.Context(), "ws")
	must(t, err)
	if fmt.Sprint(list) != "[{a modified  } {b modified  }]" {
		t.Errorf("changes %v", list)
	}
	if _, err := s.control.Changes(t.Context(), "none"); err == nil {
		t.Error("an unknown mount was accepted")
	}
}

func TestManyChangesTravelInParts(t *testing.T) {
	s := start(t, options{})
	for i := range 5001 {
		must(t, os.WriteFile(s.path(fmt.Sprintf("%d-%s", i, strings.Repeat("x", 100))), nil, 0o644))
	}
	list, err := s.control.Changes(t.Context(), "ws")
	if err != nil || len(list) != 5001 {
		t.Errorf("%d changes, %v", len(list), err)
	}
}

func TestAWalkOverADeniedTreeDoesNotFlood(t *testing.T) {
	s := start(t, options{policy: readOnly})
	for i := range 3000 {
		s.seed(map[string]string{fmt.Sprintf("ro/f%d", i): ""})
	}
	denied := 0
	for i := range 3000 {
		for range 2 {
			if err := os.WriteFile(s.path(fmt.Sprintf("ro/f%d", i)), nil, 0); errors.Is(err, unix.EACCES) {
				denied++
			}
		}
	}
	if denied != 6000 {
		t.Fatalf("%d denials", denied)
	}
	// Every denial is told: singly or in a count.
	told := func() int {
		sum := 0
		for _, e := range s.events {
			if e.Op == "write" {
				sum += max(e.Count, 1)
			}
		}
		return sum
	}
	s.waitEvent(func(wire.Event) bool { return told() == denied })
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.events) > 1000 {
		t.Errorf("%d events for %d denials", len(s.events), denied)
	}
}

func TestAuditedUseIsReportedEveryTime(t *testing.T) {
	s := start(t, options{policy: `
file_rules:
  - {name: watch, paths: ["WS/w/**"], operations: [read, list, stat], decision: audit}
  - {name: rest, paths: ["WS", "WS/**"], operations: ["*"], decision: allow}
`})
	s.seed(map[string]string{"w/f": "x", "f": "x"})
	for _, rel := range []string{"w/f", "f"} {
		_, err := os.ReadFile(s.path(rel))
		must(t, err)
	}
	_, err := os.ReadDir(s.path("w"))
	must(t, err)
	for _, op := range []string{"read", "list", "stat"} {
		e := s.waitEvent(func(e wire.Event) bool { return e.Op == op })
		if e.Decision != "audit" || e.Rule == nil || e.Rule.Name != "watch" || e.Mechanism != "fuse" {
			t.Errorf("event %+v", e)
		}
	}
}

func TestApprovalThatNobodyCanGiveDenies(t *testing.T) {
	s := start(t, options{policy: `
file_rules:
  - {name: ask, paths: ["WS/f"], operations: [write], decision: approve}
  - {name: rest, paths: ["WS", "WS/**"], operations: ["*"], decision: allow}
`})
	s.seed(map[string]string{"f": "x"})
	if err := os.WriteFile(s.path("f"), nil, 0); !errors.Is(err, unix.EACCES) {
		t.Errorf("got %v, want EACCES", err)
	}
	if e := s.waitEvent(func(e wire.Event) bool { return e.Op == "write" }); e.Decision != "deny" || !strings.Contains(e.Message, "approval") {
		t.Errorf("event %+v", e)
	}
}

func TestSoftDeleteWithoutATrashIsRefusedAtTheStart(t *testing.T) {
	c := Config{Policy: []wire.PolicySource{{Name: "p.yaml", Data: []byte(`version: 1
name: p
file_rules:
  - {name: bin, paths: ["/ws/**"], operations: [delete], decision: soft_delete}
`)}}}
	rules, err := c.load()
	must(t, err)
	if err := supported(rules, false); err == nil || !strings.Contains(err.Error(), "p.yaml:4:") {
		t.Errorf("got %v", err)
	}
	must(t, supported(rules, true))
}

func TestGitWorksOnTheMount(t *testing.T) {
	for name, policy := range map[string]string{"all allowed": "", "hooks protected": gitPolicy} {
		t.Run(name, func(t *testing.T) {
			s := start(t, options{policy: policy})
			if policy != "" {
				// The repository is made before: its config is protected.
				must(t, exec.Command("git", "init", "-q", s.backing).Run())
			}
			script := `set -e
				git init -q . 2>/dev/null || test -d .git
				export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
				for i in 1 2 3 4 5; do mkdir -p d$i/e; for j in $(seq 40); do echo $i $j > d$i/e/f$j; done; done
				git add -A; git commit -qm one
				git checkout -q -b other; git mv d1 d6; echo x >> d2/e/f1; rm d3/e/f2; git commit -qam two
				git checkout -q master 2>/dev/null || git checkout -q main
				git merge -q other -m m; git stash list; git gc -q --prune=now; git fsck --strict; git status --porcelain`
			cmd := exec.Command("sh", "-c", script)
			cmd.Dir = s.dir
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			var all sync.WaitGroup
			for i := range 4 {
				all.Go(func() {
					tree := filepath.Join(s.dir, fmt.Sprintf("wt%d", i))
					cmd := exec.Command("sh", "-c", fmt.Sprintf(`set -e
						git clone -q --no-hardlinks . %[1]s && cd %[1]s
						for k in 1 2 3; do echo $k > n$k; git add -A; git -c user.name=a -c user.email=a@b commit -qm $k; done
						git fsck --strict; test -z "$(git status --porcelain)"`, tree))
					cmd.Dir = s.dir
					if out, err := cmd.CombinedOutput(); err != nil {
						t.Errorf("clone %d: %v: %s", i, err, out)
					}
				})
			}
			all.Wait()
		})
	}
}

func TestLocksExclude(t *testing.T) {
	s := start(t, options{})
	must(t, os.WriteFile(s.path("f"), []byte("x"), 0o644))
	a, err := os.OpenFile(s.path("f"), os.O_RDWR, 0)
	must(t, err)
	defer a.Close()
	b, err := os.OpenFile(s.path("f"), os.O_RDWR, 0)
	must(t, err)
	defer b.Close()
	must(t, unix.Flock(int(a.Fd()), unix.LOCK_EX))
	if err := unix.Flock(int(b.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("second flock: %v", err)
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	must(t, unix.FcntlFlock(a.Fd(), unix.F_OFD_SETLK, &lock))
	if err := unix.FcntlFlock(b.Fd(), unix.F_OFD_SETLK, &lock); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("second lock of a range: %v", err)
	}
}

func TestSharedMappingsReachTheBacking(t *testing.T) {
	for name, plain := range map[string]bool{"passthrough": false, "through the server": true} {
		t.Run(name, func(t *testing.T) { checkMapping(t, start(t, options{plain: plain}), plain) })
	}
}

func checkMapping(t *testing.T, s *session, plain bool) {
	must(t, os.WriteFile(s.path("f"), make([]byte, 8192), 0o644))
	f, err := os.OpenFile(s.path("f"), os.O_RDWR, 0)
	must(t, err)
	data, err := unix.Mmap(int(f.Fd()), 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	must(t, s.control.Baseline(t.Context()))
	f.Close()
	for !plain && slices.Contains(serverFiles(s), s.back("f")) { // until the release was answered
		runtime.Gosched()
	}
	copy(data[5000:], "mapped")
	must(t, unix.Msync(data, unix.MS_SYNC))
	must(t, unix.Munmap(data))
	got, err := os.ReadFile(s.back("f"))
	must(t, err)
	if string(got[5000:5006]) != "mapped" {
		t.Error("the backing lacks what was written through the mapping")
	}
	if got, _ := os.ReadFile(s.path("f")); string(got[5000:5006]) != "mapped" {
		t.Error("the mount lacks what was written through the mapping")
	}
	if list, err := s.control.Changes(t.Context(), "ws"); err != nil || len(list) != 1 {
		t.Errorf("changes %v, %v", list, err)
	}
}

// TestReadsSeeAMappingWithoutAHandle: while a mapping can write a file whose handle is
// closed, each read sees what it wrote. Afterwards the page cache of the mount serves.
func TestReadsSeeAMappingWithoutAHandle(t *testing.T) {
	s := start(t, options{})
	f, err := os.OpenFile(s.path("f"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	must(t, err)
	must(t, f.Truncate(4096))
	data, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	f.Close()
	for slices.Contains(serverFiles(s), s.back("f")) { // until the release was answered
		runtime.Gosched()
	}
	read := func(want string) {
		t.Helper()
		if got, err := os.ReadFile(s.path("f")); err != nil || string(got[:1]) != want {
			t.Errorf("read %.1q, %v, want %q", got, err, want)
		}
	}
	for _, text := range []string{"1", "2", "3"} {
		copy(data, text)
		for began := time.Now(); time.Since(began) < 2*answerTime; { // in the end the file does not count as changed
			read(text)
		}
	}
	copy(data, "4")
	must(t, unix.Munmap(data))
	for range 3 {
		read("4")
	}
	w, err := os.OpenFile(s.path("f"), os.O_RDWR, 0)
	must(t, err)
	data, err = unix.Mmap(int(w.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	w.Close()
	copy(data, "5")
	read("5")
	must(t, unix.Munmap(data))
}

func TestALeaseTellsWhetherAFileIsMapped(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	must(t, os.WriteFile(name, make([]byte, 4096), 0o600))
	w, err := os.OpenFile(name, os.O_RDWR, 0)
	must(t, err)
	data, err := unix.Mmap(int(w.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	w.Close()
	r, err := os.Open(name)
	must(t, err)
	defer r.Close()
	h := &handle{io: &tree.IO{Mapped: true}, fd: int(r.Fd())}
	files := openFiles{leases: true}
	for range 2 {
		if !files.mapped(h) {
			t.Error("a file that is mapped counts as not mapped")
		}
	}
	must(t, unix.Munmap(data))
	if (&openFiles{}).mapped(h) != true {
		t.Error("without leases a file counts as not mapped")
	}
	if files.mapped(h) || h.io.Mapped {
		t.Error("a file that is not mapped any more counts as mapped")
	}
	for _, flags := range []int{os.O_RDWR, os.O_WRONLY} { // the lease has ended
		w, err := os.OpenFile(name, flags|unix.O_NONBLOCK, 0)
		must(t, err)
		w.Close()
	}
}

// serverFiles are the files the server has open.
func serverFiles(s *session) []string {
	dir := fmt.Sprintf("/proc/%d/fd", s.server.Process.Pid)
	list, err := os.ReadDir(dir)
	must(s.t, err)
	var out []string
	for _, e := range list {
		if name, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil {
			out = append(out, name)
		}
	}
	return out
}

func TestTheServerClosesWhatNobodyNeeds(t *testing.T) {
	s := start(t, options{policy: readOnly})
	work := func() {
		for i := range 50 {
			p := s.path(fmt.Sprintf("d%d", i))
			must(t, os.Mkdir(p, 0o755))
			must(t, os.WriteFile(p+"/f", []byte("x"), 0o644))
			must(t, os.WriteFile(p+"/g", []byte("x"), 0o644))
			must(t, os.Rename(p+"/f", p+"/g"))
			_, err := os.ReadDir(p)
			must(t, err)
			must(t, os.RemoveAll(p))
		}
	}
	work()
	before := len(serverFiles(s))
	work()
	work()
	for deadline := time.Now().Add(60 * time.Second); len(serverFiles(s)) > before+5; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%d descriptors, before %d: %v", len(serverFiles(s)), before, serverFiles(s))
		}
	}
}

func TestAnUnlinkedFileStaysUsable(t *testing.T) {
	s := start(t, options{})
	must(t, os.WriteFile(s.path("f"), []byte("text"), 0o644))
	fd, err := unix.Open(s.path("f"), unix.O_PATH, 0)
	must(t, err)
	defer closeFD(fd)
	f, err := os.OpenFile(s.path("f"), os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	must(t, os.Remove(s.path("f")))
	must(t, os.WriteFile(s.path("f"), []byte("another"), 0o644))
	if got, err := os.ReadFile(procPath(fd)); err != nil || string(got) != "text" {
		t.Errorf("read %q, %v", got, err)
	}
	must(t, unix.Fchmod(int(f.Fd()), 0o600))
	must(t, unix.Ftruncate(int(f.Fd()), 2))
	var st unix.Stat_t
	must(t, unix.Fstat(fd, &st))
	if st.Nlink != 0 || st.Size != 2 || st.Mode&0o777 != 0o600 {
		t.Errorf("nlink %d size %d mode %o", st.Nlink, st.Size, st.Mode)
	}
	must(t, os.Mkdir(s.path("d"), 0o755))
	dir, err := unix.Open(s.path("d"), unix.O_PATH, 0)
	must(t, err)
	defer closeFD(dir)
	must(t, os.Remove(s.path("d")))
	must(t, unix.Fstat(dir, &st))
	if _, err := unix.Openat(dir, "x", unix.O_CREAT|unix.O_WRONLY, 0o644); !errors.Is(err, unix.ENOENT) {
		t.Errorf("create in a removed directory: %v", err)
	}
}

func TestConfigurationsAreChecked(t *testing.T) {
	good := Config{Mounts: []MountConfig{{"ws", "/ws"}}, Policy: []wire.PolicySource{{Name: "p"}}}
	must(t, good.check())
	for name, c := range map[string]Config{
		"no mounts":     {Policy: good.Policy},
		"no policy":     {Mounts: good.Mounts},
		"no tag":        {Mounts: []MountConfig{{"", "/ws"}}, Policy: good.Policy},
		"tag twice":     {Mounts: []MountConfig{{"a", "/ws"}, {"a", "/x"}}, Policy: good.Policy},
		"relative path": {Mounts: []MountConfig{{"a", "ws"}}, Policy: good.Policy},
		"unclean path":  {Mounts: []MountConfig{{"a", "/ws/../x"}}, Policy: good.Policy},
	} {
		if c.check() == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

// TestWhatOthersWriteIsSeenInTime: their changes are announced by nobody, and
// seen when what the kernel remembers is as old as it may be.
func TestWhatOthersWriteIsSeenInTime(t *testing.T) {
	s := start(t, options{cacheSeconds: 1})
	s.seed(map[string]string{"changed": "old", "removed": "old", "dir/a": ""})
	look := func() string {
		text, _ := os.ReadFile(s.path("changed"))
		_, removed := os.Stat(s.path("removed"))
		_, made := os.Stat(s.path("made"))
		names, _ := os.ReadDir(s.path("dir"))
		return fmt.Sprintf("%s %v %v %d", text, removed == nil, made == nil, len(names))
	}
	if got := look(); got != "old true false 1" {
		t.Fatal(got)
	}
	must(t, os.WriteFile(s.back("changed"), []byte("new and longer"), 0o644))
	must(t, os.Remove(s.back("removed")))
	must(t, os.WriteFile(s.back("made"), nil, 0o644))
	must(t, os.WriteFile(s.back("dir/b"), nil, 0o644))
	for deadline := time.Now().Add(2 * time.Minute); look() != "new and longer false true 2"; {
		if time.Now().After(deadline) {
			t.Fatalf("seen is %s", look())
		}
	}
}
