package fuse

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestARedirectedNameFollowsItsTarget: the host changes the target of a redirected name.
// Nobody watches the target on behalf of the name, so the kernel caches nothing for long.
func TestARedirectedNameFollowsItsTarget(t *testing.T) {
	s := start(t, options{policy: awayPolicy})
	s.seed(map[string]string{"flat/x": "of the workspace"})
	for name, to := range map[string]string{"flat/x": "to/x", "flat/new": "to/new"} {
		must(t, os.WriteFile(s.path(name), []byte("of a command"), 0o644))
		// The workspace's own entry of that name is another file.
		seen := func(look func(name string) func(string) string) func(dir string) string {
			return func(dir string) string {
				if dir == s.dir {
					return look(name)(dir)
				}
				return look(to)(dir)
			}
		}
		for _, e := range []struct {
			what string
			do   func() error
		}{
			{"at first", func() error { return nil }},
			{"a mode", func() error { return os.Chmod(s.back(to), 0o600) }},
			{"replaced", func() error {
				return firstOf(os.WriteFile(s.back("beside"), []byte("of the host"), 0o644), os.Rename(s.back("beside"), s.back(to)))
			}},
			{"grown", func() error { return os.WriteFile(s.back(to), make([]byte, 5000), 0o644) }},
			{"removed", func() error { return os.Remove(s.back(to)) }},
			{"made again", func() error { return os.WriteFile(s.back(to), []byte("again"), 0o640) }},
		} {
			must(t, e.do())
			await(s, name+": attributes: "+e.what, seen(attributesOf))
			await(s, name+": content: "+e.what, seen(content))
			listOf("flat")(s.dir)
			if _, err := os.Stat(s.path(name)); err != nil && e.what != "removed" {
				t.Errorf("%s after a listing: %v", name, err)
			}
		}
	}
}

// TestAListingDoesNotBringBackARedirectedFile: a listing with attributes has those of the
// workspace's entry, which commands do not see any more.
func TestAListingDoesNotBringBackARedirectedFile(t *testing.T) {
	s := start(t, options{policy: awayPolicy})
	s.seed(map[string]string{"flat/x": "of the workspace", "flat/y": "y"})
	must(t, os.WriteFile(s.path("flat/x"), []byte("of a command, and longer"), 0o644))
	for range 3 {
		outside(t, s.dir, "ls -l flat >/dev/null")
		var st unix.Stat_t
		must(t, unix.Stat(s.path("flat/x"), &st))
		if st.Size != int64(len("of a command, and longer")) {
			t.Errorf("the redirected file has %d bytes", st.Size)
		}
		holds(t, s.path("flat/x"), "of a command, and longer")
		holds(t, s.back("flat/x"), "of the workspace")
	}
}
