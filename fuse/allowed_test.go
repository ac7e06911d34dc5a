package fuse

import (
	"errors"
	"os"
	"testing"
	"unsafe"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
)

// opens reads a file twice: the second time the server remembers.
func opens(t *testing.T, name string) {
	t.Helper()
	for range 2 {
		_, err := os.ReadFile(name)
		must(t, err)
	}
}

// TestWhatWasAllowedIsForgottenWithItsName: a read that was allowed is judged
// anew after all that may change its verdict.
func TestWhatWasAllowedIsForgottenWithItsName(t *testing.T) {
	const dark = `
file_rules:
  - {name: dark, paths: ["WS/dark/**", "WS/x/b/**"], operations: [read], decision: deny}
  - {name: rest, paths: ["WS", "WS/**"], operations: ["*"], decision: allow}
`
	for name, change := range map[string]func(t *testing.T, s *session) string{
		"the file is renamed": func(t *testing.T, s *session) string {
			must(t, os.Rename(s.path("a/b/f"), s.path("dark/f")))
			return "dark/f"
		},
		"a directory above it is renamed": func(t *testing.T, s *session) string {
			must(t, os.Rename(s.path("a"), s.path("dark/a")))
			return "dark/a/b/f"
		},
		"a directory above it is exchanged": func(t *testing.T, s *session) string {
			must(t, unix.Renameat2(unix.AT_FDCWD, s.path("a"), unix.AT_FDCWD, s.path("x"), unix.RENAME_EXCHANGE))
			return "x/b/f"
		},
		"it gets a second name": func(t *testing.T, s *session) string {
			must(t, os.Link(s.path("a/b/f"), s.path("dark/f")))
			return "a/b/f"
		},
		"it had a second name": func(t *testing.T, s *session) string {
			must(t, os.Link(s.path("a/b/f"), s.path("dark/f")))
			must(t, os.Remove(s.path("dark/f")))
			return "a/b/f"
		},
		"the rules are exchanged": func(t *testing.T, s *session) string {
			s.reload(t, `
file_rules:
  - {name: no, paths: ["WS/a/**"], operations: [read], decision: deny}
  - {name: rest, paths: ["WS", "WS/**"], operations: ["*"], decision: allow}
`)
			return "a/b/f"
		},
		"a reload audits it": func(t *testing.T, s *session) string {
			s.reload(t, `
file_rules:
  - {name: no, paths: ["WS/a/**"], operations: [read], decision: audit}
  - {name: rest, paths: ["WS", "WS/**"], operations: ["*"], decision: allow}
`)
			return ""
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, options{policy: dark})
			s.seed(map[string]string{"a/b/f": "text", "a/b/g": "text", "dark/d": "text", "x/other": "text"})
			opens(t, s.path("a/b/f"))
			rel := change(t, s)
			if rel == "" {
				opens(t, s.path("a/b/f"))
				s.waitEvent(func(e wire.Event) bool { return e.Op == "read" && e.Decision == "audit" && e.Count == 0 })
				return
			}
			for range 2 {
				if _, err := os.ReadFile(s.path(rel)); !errors.Is(err, unix.EACCES) {
					t.Fatalf("read of %s: %v, want EACCES", rel, err)
				}
			}
		})
	}
}

// TestTheLastEraRemembersNothing: a number of an era is not used twice.
func TestTheLastEraRemembersNothing(t *testing.T) {
	tr := newTree(&unix.Stat_t{Ino: 1, Mode: unix.S_IFDIR})
	n := tr.adopt(tr.root, "f", &unix.Stat_t{Ino: 2, Mode: unix.S_IFREG, Nlink: 1})
	const read = 1
	tr.allow(n, read, tr.era)
	if _, at := tr.standing(uint64(n.id), read); !at.allowed {
		t.Error("what was allowed is not remembered")
	}
	if _, at := tr.standing(uint64(n.id), 2); at.allowed {
		t.Error("another operation is allowed")
	}
	before := tr.era
	tr.forgetAllowed()
	tr.allow(n, read, before) // was judged by the rules before
	if _, at := tr.standing(uint64(n.id), read); at.allowed {
		t.Error("what the rules before allowed is remembered")
	}
	tr.era = 1<<32 - 2
	tr.forgetAllowed()
	tr.forgetAllowed()
	tr.allow(n, read, tr.era)
	if _, at := tr.standing(uint64(n.id), read); at.allowed || tr.era != 1<<32-1 {
		t.Errorf("era %d remembers", tr.era)
	}
}

// TestRequestsThatAreNotWhole: none is answered as if it were.
func TestRequestsThatAreNotWhole(t *testing.T) {
	k, _ := playKernel(t)
	const lookup, write = 1, 16
	name := gofuse.InHeader{Opcode: lookup, Unique: 1, NodeId: 7}
	data := gofuse.WriteIn{InHeader: gofuse.InHeader{Opcode: write, Unique: 2, NodeId: 7}, Size: 5}
	for what, packet := range map[string][]byte{
		"a name without end": append(unsafe.Slice((*byte)(unsafe.Pointer(&name)), unsafe.Sizeof(name)), "name"...),
		"missing data":       append(unsafe.Slice((*byte)(unsafe.Pointer(&data)), unsafe.Sizeof(data)), "data"...),
		"half a structure":   unsafe.Slice((*byte)(unsafe.Pointer(&data)), unsafe.Sizeof(data)-8),
	} {
		_, err := unix.Write(k.fd, packet)
		must(t, err)
		buf := make([]byte, 4096)
		n, err := retry(func() (int, error) { return unix.Read(k.fd, buf) })
		must(t, err)
		out := (*gofuse.OutHeader)(unsafe.Pointer(&buf[0]))
		if n != outHeader || out.Status != -int32(unix.EINVAL) && out.Status != -int32(unix.EIO) {
			t.Errorf("%s: %d bytes, status %d", what, n, out.Status)
		}
	}
}
