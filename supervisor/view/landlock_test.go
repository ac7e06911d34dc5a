package view

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestWhatIsGrantedAroundHiddenNames(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "closed/x", "half/open", "half/shut"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("closed", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	in := func(names ...string) []string {
		for i := range names {
			names[i] = filepath.Join(dir, names[i])
		}
		return names
	}
	got := without(dir, in("closed", "half/shut"))
	if want := in("a", "half/open"); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := without(dir, nil); !slices.Equal(got, []string{dir}) {
		t.Errorf("nothing hidden: %q", got)
	}
	if got := without(dir, []string{dir}); got != nil {
		t.Errorf("all hidden: %q", got)
	}
}
