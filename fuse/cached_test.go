package fuse

import (
	"errors"
	"os"
	"testing"

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
		"the rules are replaced": func(t *testing.T, s *session) string {
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
