package fuse

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/fuse/tree"
	"agentsh/policy"
	"agentsh/policy/syntax"
)

// someUnlisted denies the listing of some directories only.
const someUnlisted = `
file_rules:
  - {name: unlisted, paths: ["WS/closed/**", "**/.secret"], operations: [list], decision: deny}
  - {name: rest, paths: ["WS", "WS/**"], operations: ["*"], decision: allow}
`

// TestListingsAreCachedBesideDeniedNames stops the server: what it is not asked for
// is still answered.
func TestListingsAreCachedBesideDeniedNames(t *testing.T) {
	s := start(t, options{policy: someUnlisted})
	s.seed(map[string]string{"open/a": "", "open/.secret/b": "", "closed/c/d": ""})
	count := func(rel string) int {
		entries, err := os.ReadDir(s.path(rel))
		if errors.Is(err, unix.EACCES) {
			return -1
		}
		must(t, err)
		return len(entries)
	}
	for range 2 {
		if a, b, c := count("open"), count("open/.secret"), count("closed/c"); a != 2 || b != -1 || c != -1 {
			t.Fatalf("listings of %d, %d and %d entries", a, b, c)
		}
	}
	must(t, s.server.Process.Signal(unix.SIGSTOP))
	listed := make(chan int, 1)
	go func() { listed <- count("open") }()
	select {
	case n := <-listed:
		if n != 2 {
			t.Errorf("%d entries from what the kernel keeps", n)
		}
	case <-time.After(60 * time.Second):
		t.Error("the server is asked for a listing that the kernel has")
	}
	must(t, s.server.Process.Signal(unix.SIGCONT))
}

func TestACachedListingDoesNotFollowAMovedDirectory(t *testing.T) {
	s := start(t, options{policy: someUnlisted})
	s.seed(map[string]string{"d/sub/a": "", "closed/x": ""})
	list := func(rel string) error {
		_, err := os.ReadDir(s.path(rel))
		return err
	}
	must(t, list("d"))
	must(t, list("d/sub"))
	open, err := os.Open(s.path("d/sub"))
	must(t, err)
	defer open.Close()
	must(t, os.Rename(s.path("d"), s.path("closed/d")))
	for _, rel := range []string{"closed/d", "closed/d/sub"} {
		if err := list(rel); !errors.Is(err, unix.EACCES) {
			t.Errorf("listing of %s: %v", rel, err)
		}
	}
	if _, err := open.ReadDir(-1); !errors.Is(err, unix.EACCES) {
		t.Errorf("listing through what was open before: %v", err)
	}
}

func TestAServerAfterTheDeathOfOneServesTheSame(t *testing.T) {
	backing := t.TempDir()
	must(t, os.WriteFile(filepath.Join(backing, "f"), []byte("kept"), 0o644))
	first := start(t, options{backing: backing, cold: true})
	busy, err := os.Open(first.path("f"))
	must(t, err)
	defer busy.Close()
	must(t, first.server.Process.Kill())
	first.server.Wait()
	if err := unix.Unmount(first.dir, 0); !errors.Is(err, unix.EBUSY) {
		t.Errorf("unmount while a file is open: %v", err)
	}
	must(t, unix.Unmount(first.dir, unix.MNT_DETACH))
	if _, err := busy.Read(make([]byte, 1)); !errors.Is(err, unix.ENOTCONN) && !errors.Is(err, unix.EIO) {
		t.Errorf("read from a dead mount: %v", err)
	}
	second := start(t, options{backing: backing})
	if got, err := os.ReadFile(second.path("f")); err != nil || string(got) != "kept" {
		t.Errorf("the next mount has %q, %v", got, err)
	}
}

// someHidden says nothing of stat for one tree and denies it for some names.
const someHidden = `
file_rules:
  - {name: hidden, paths: ["WS/**/.secret"], operations: ["*"], decision: deny}
  - {name: unnamed, paths: ["WS/gone/**/kept.txt"], operations: [stat], decision: deny}
  - {name: listed, paths: ["WS/listed/**"], operations: [list], decision: allow}
  - {name: rest, paths: ["WS/open/**", "WS/gone/**"], operations: ["*"], decision: allow}
`

// TestListedNamesCanBeLookedUp walks trees whose rules do not mention stat,
// or deny it for some names: those are not listed.
func TestListedNamesCanBeLookedUp(t *testing.T) {
	s := start(t, options{policy: someHidden})
	s.seed(
		map[string]string{
			"open/a":           "a",
			"open/.secret":     "s",
			"open/d/.secret":   "s",
			"listed/b":         "bb",
			"listed/d/.secret": "s",
			"listed/d/c":       "ccc",
			"gone/kept.txt":    "k",
			"shut/x":           "x",
		},
	)
	for range 2 { // the second time from what the kernel keeps
		for rel, want := range map[string]string{"": "gone listed open", "open": "a d", "open/d": "", "listed": "b d", "listed/d": "c",
			"gone": ""} {
			entries, err := os.ReadDir(s.path(rel))
			if rel == "" && err != nil {
				continue // no rule allows the listing of the whole
			}
			must(t, err)
			var names []string
			for _, e := range entries {
				names = append(names, e.Name())
				if info, err := e.Info(); err != nil || info.Mode().IsRegular() && info.Size() == 0 {
					t.Errorf("stat of %s in %s: %v", e.Name(), rel, err)
				}
			}
			if got := strings.Join(names, " "); got != want {
				t.Errorf("%q lists %q, want %q", rel, got, want)
			}
		}
	}
	if _, err := os.ReadFile(s.path("listed/b")); !errors.Is(err, unix.EACCES) {
		t.Errorf("content of what may be listed: %v", err)
	}
	for _, rel := range []string{"open/.secret", "shut/x"} {
		if _, err := os.Lstat(s.path(rel)); !errors.Is(err, unix.EACCES) {
			t.Errorf("stat of %s: %v, want EACCES", rel, err)
		}
	}
	must(t, os.MkdirAll(s.path("open/moved/gone"), 0o755))
	must(t, os.WriteFile(s.path("open/moved/gone/kept.txt"), []byte("k"), 0o644))
	counts := func(rel string, want int) {
		entries, err := os.ReadDir(s.path(rel))
		if must(t, err); len(entries) != want {
			t.Errorf("%s lists %v", rel, entries)
		}
	}
	counts("open/moved/gone", 1)
	counts("open/moved/gone", 1) // from what the kernel keeps
	must(t, os.Rename(s.path("open/moved"), s.path("gone/moved")))
	counts("gone/moved/gone", 0)
	for _, rel := range []string{"listed/absent", "listed/d/absent"} {
		for name, do := range map[string]func(string) error{"unlink": unix.Unlink, "rmdir": unix.Rmdir,
			"rename": func(p string) error { return unix.Rename(p, s.path("open/x")) }} {
			if err := do(s.path(rel)); !errors.Is(err, unix.ENOENT) {
				t.Errorf("%s of the absent %s: %v, want ENOENT", name, rel, err)
			}
		}
	}
	if err := unix.Mkdir(s.path("listed/d"), 0o755); !errors.Is(err, unix.EEXIST) {
		t.Errorf("mkdir of what is there: %v, want EEXIST", err)
	}
	if fd, err := unix.Open(s.path("listed/b"), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o644); !errors.Is(err, unix.EEXIST) {
		t.Errorf("exclusive open of what is there: %d, %v, want EEXIST", fd, err)
	}
}

// TestADeniedFileMayBeLookedAtAndIsNotListed: tar, cp -r and git add open what is listed.
func TestADeniedFileMayBeLookedAtAndIsNotListed(t *testing.T) {
	s := start(t, options{policy: `
file_rules:
  - {name: there, paths: ["WS/**/.env", "WS/**/keys/**", "WS/seen"], operations: [stat], decision: allow}
  - {name: secret, paths: ["WS/**/.env", "WS/**/keys/**"], operations: ["*"], decision: deny}
  - {name: closed, paths: ["WS/closed"], operations: [read], decision: deny}
  - {name: rest, paths: ["WS/**"], operations: ["*"], decision: allow}
`})
	s.seed(map[string]string{".env": "S=1", "a": "x", "d/.env": "S=1", "d/keys/k": "x", "d/b": "x", "closed": "x", "seen": "x"})
	listed := func(rel string) string {
		entries, err := os.ReadDir(s.path(rel))
		must(t, err)
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return strings.Join(names, " ")
	}
	for range 2 {
		if a, b := listed(""), listed("d"); a != "a closed d seen" || b != "b" {
			t.Fatalf("listed: %q and %q", a, b)
		}
		if info, err := os.Stat(s.path(".env")); err != nil || info.Size() != 3 {
			t.Errorf("stat: %v, %v", info, err)
		}
		if _, err := os.ReadFile(s.path("d/.env")); !errors.Is(err, unix.EACCES) {
			t.Errorf("reading: %v", err)
		}
	}
	inside(s, `t=$(mktemp -d); cd d; tar cf $t/x.tar .; cp -r . $t/copy; rm -r $t`)
}

// TestTheSilentPartIsAllowed compares the silent part of mounts with the rules, for random rules.
func TestTheSilentPartIsAllowed(t *testing.T) {
	paths := []string{""}
	for _, a := range []string{"a", "b", "ab"} {
		paths = append(paths, a)
		for _, b := range []string{"a", "b", ".x", "ab"} {
			paths = append(paths, a+"/"+b, a+"/"+b+"/a", a+"/"+b+"/.x")
		}
	}
	patterns := strings.Fields("/ws/** /ws /** /ws/a/** /ws/a /ws/a* /ws/*/b /ws/ab/a/** /ws/**/.x **/.x /ws/a/{a,b}/a /w/** /ws/b/ab")
	effects := []string{"allow", "allow", "allow", "deny", "audit", "approve"}
	operations := []string{"'*'", "'*'", "read", "stat, list", "read, list, stat", "write", "list"}
	r := rand.New(rand.NewPCG(1, 2))
	plainly, several := 0, 0
	for range 3000 {
		text := "version: 1\nname: p\nfile_rules:\n"
		for i := range 1 + r.IntN(5) {
			text += fmt.Sprintf("  - {name: r%d, paths: ['%s'], operations: [%s], decision: %s}\n", i, patterns[r.IntN(len(patterns))],
				operations[r.IntN(len(operations))], effects[r.IntN(len(effects))])
		}
		text += "  - {name: rest, paths: ['/ws/**'], operations: ['*'], decision: allow}\n"
		p, err := syntax.Load(policy.Source{Name: "p.yaml", Data: []byte(text)}, syntax.Options{})
		must(t, err)
		mount := []string{"/ws", "/ws/a", "/"}[r.IntN(3)]
		a := &access{rules: newCurrent(p), files: &files{path: mount}}
		silent := a.silentIn(a.rules.now())
		allowed := func(rel string) bool {
			for _, op := range []policy.FileOp{policy.OpRead, policy.OpList, policy.OpStat} {
				if d, _ := p.Evaluate(&policy.FileRequest{Path: a.files.inside(rel), Op: op}); d.Effect != policy.Allow {
					return false
				}
			}
			return true
		}
		for _, rel := range paths {
			if mount == "/" && rel != "" {
				rel = "ws/" + rel
			}
			if silent.has(rel) && !allowed(rel) {
				t.Fatalf("mount %s, %q is not allowed:\n%s", mount, rel, text)
			}
			if silent.has(rel) {
				plainly++
			}
			for _, name := range []string{"a", "b", "ab", ".x"} {
				if silent.hasEntries(rel) && !allowed(tree.Join(rel, name)) {
					t.Fatalf("mount %s, entry %s of %q is not allowed:\n%s", mount, name, rel, text)
				}
			}
			if silent.hasEntries(rel) && len(silent.except) > 0 {
				several++
			}
		}
	}
	if plainly < 1000 || several < 100 {
		t.Errorf("%d paths and %d directories beside exceptions were in silent parts", plainly, several)
	}
}
