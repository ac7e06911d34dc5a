package paths

import (
	"os"
	"path/filepath"
	"testing"
)

func TestWithin(t *testing.T) {
	for _, test := range []struct {
		name, dir string
		want      bool
	}{
		{"/a", "/a", true}, {"/a/b", "/a", true}, {"/ab", "/a", false}, {"/", "/a", false},
		{"/a", "/", true}, {"/", "/", true}, {"a", "/", false},
	} {
		if got := Within(test.name, test.dir); got != test.want {
			t.Errorf("%s in %s: %v", test.name, test.dir, got)
		}
	}
}

func TestResolveFollowsLinksAsFarAsTheyExist(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir+"/real", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		dir + "/link": dir + "/real", dir + "/link/missing/x": dir + "/real/missing/x", dir + "/link/../y": dir + "/y",
		"/missing": "/missing", "/": "/",
	} {
		if got := Resolve(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}
