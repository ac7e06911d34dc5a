package fuse

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
)

// player makes the same random calls in several directories.
type player struct {
	rand  *rand.Rand
	names []string
}

func newPlayer(seed uint64) *player {
	p := &player{rand: rand.New(rand.NewPCG(seed, 1))}
	for _, d := range []string{"", "d0/", "d1/", "d0/e/"} {
		for i := range 4 {
			p.names = append(p.names, fmt.Sprintf("%sf%d", d, i))
		}
	}
	p.names = append(p.names, "d0", "d1", "d0/e", "d2")
	return p
}

func (p *player) name() string { return p.names[p.rand.IntN(len(p.names))] }

// step returns one random call, to be made in any directory.
func (p *player) step() func(dir string) string {
	a, b, n, pick := p.name(), p.name(), p.rand.IntN(9000), p.rand.IntN(17)
	data := []byte(strings.Repeat(string(rune('a'+n%26)), n))
	return func(dir string) string {
		x, y := filepath.Join(dir, a), filepath.Join(dir, b)
		var err error
		var more string
		switch pick {
		case 0, 1:
			err = os.WriteFile(x, data, 0o644)
		case 2:
			var f *os.File
			if f, err = os.OpenFile(x, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600); err == nil {
				_, err = f.Write(data[:min(n, 100)])
				f.Close()
			}
		case 3:
			var f *os.File
			if f, err = os.OpenFile(x, os.O_RDWR, 0); err == nil {
				_, err = f.WriteAt([]byte("middle"), int64(n))
				f.Close()
			}
		case 4:
			err = unix.Truncate(x, int64(n))
		case 5, 6:
			err = unix.Rename(x, y)
		case 7:
			err = unix.Renameat2(unix.AT_FDCWD, x, unix.AT_FDCWD, y, unix.RENAME_NOREPLACE)
		case 8:
			err = unix.Renameat2(unix.AT_FDCWD, x, unix.AT_FDCWD, y, unix.RENAME_EXCHANGE)
		case 9:
			err = unix.Unlink(x)
		case 10:
			err = unix.Mkdir(x, 0o755)
		case 11:
			err = unix.Rmdir(x)
		case 12:
			err = unix.Link(x, y)
		case 13:
			err = unix.Symlink(filepath.Base(b), x)
		case 14:
			err = unix.Chmod(x, 0o600|uint32(n)&0o77)
		case 15:
			var list []os.DirEntry
			list, err = os.ReadDir(x)
			more = fmt.Sprint(list)
		case 16:
			var got []byte
			got, err = os.ReadFile(x)
			more = fmt.Sprintf("%d bytes %.20q", len(got), got)
		}
		return fmt.Sprintf("%d %s %s %d: %v %s", pick, a, b, n, plain(err), more)
	}
}

// plain is an error without the path it names.
func plain(err error) string {
	for err != nil {
		u, ok := err.(interface{ Unwrap() error })
		if !ok {
			return err.Error()
		}
		err = u.Unwrap()
	}
	return "ok"
}

// contents describes a tree without times, with link counts.
func contents(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	must(t, filepath.Walk(dir, func(p string, fi os.FileInfo, err error) error {
		if err != nil || p == dir {
			return err
		}
		rel := p[len(dir)+1:]
		switch {
		case fi.Mode().IsRegular():
			data, err := os.ReadFile(p)
			out[rel] = fmt.Sprintf("%v %d %q", fi.Mode(), len(data), data)
			return err
		case fi.Mode()&os.ModeSymlink != 0:
			text, err := os.Readlink(p)
			out[rel] = "link " + text
			return err
		}
		out[rel] = fi.Mode().String()
		return nil
	}))
	return out
}

func TestRandomCallsDoWhatAPlainDirectoryDoes(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			policy := ""
			if seed%2 == 1 { // listing with handles, and every rename checked entry by entry
				policy = `
file_rules:
  - {name: other, paths: ["WS/never"], operations: ["list"], decision: deny}
  - {name: rest, paths: ["WS", "WS/**"], operations: ["*"], decision: allow}
`
			}
			s := start(t, options{policy: policy, plain: seed%3 == 2})
			model := t.TempDir()
			for _, rel := range []string{"f0", "d0/f1", "d0/e/f2", "d1/f3"} {
				s.seed(map[string]string{rel: "seed " + rel})
				must(t, os.MkdirAll(filepath.Dir(filepath.Join(model, rel)), 0o755))
				must(t, os.WriteFile(filepath.Join(model, rel), []byte("seed "+rel), 0o644))
			}
			before := contents(t, model)
			p := newPlayer(seed)
			for i := range 1500 {
				step := p.step()
				want, got := step(model), step(s.dir)
				if got != want {
					t.Fatalf("step %d: got %s\nwant %s", i, got, want)
				}
			}
			after := contents(t, model)
			for name, dir := range map[string]string{"mount": s.dir, "backing": s.backing} {
				if got := contents(t, dir); fmt.Sprint(got) != fmt.Sprint(after) {
					t.Errorf("%s differs:\n%v\nwant\n%v", name, got, after)
				}
			}
			checkChanges(t, s, before, after)
		})
	}
}

// checkChanges compares the change record with what really differs.
func checkChanges(t *testing.T, s *session, before, after map[string]string) {
	t.Helper()
	list, err := s.control.Changes(t.Context(), "ws")
	must(t, err)
	told := map[string]bool{}
	for _, c := range list {
		told[string(c.Path)] = true
		switch _, now := after[string(c.Path)]; {
		case c.Kind == wire.Deleted && now:
			t.Errorf("deleted %s, but it is there", c.Path)
		case c.Kind != wire.Deleted && !now:
			t.Errorf("%s %s, but it is not there", c.Kind, c.Path)
		}
	}
	// What differs is told itself, or lies in a directory that was renamed.
	explained := func(rel string) bool {
		for ; rel != "."; rel = filepath.Dir(rel) {
			if told[rel] {
				return true
			}
		}
		return false
	}
	for rel, was := range before {
		if now, ok := after[rel]; (!ok || now != was) && ok && !explained(rel) {
			t.Errorf("%s changed, but no change says so", rel)
		}
	}
	for rel := range after {
		if _, ok := before[rel]; !ok && !explained(rel) {
			t.Errorf("%s is new, but no change says so", rel)
		}
	}
}
