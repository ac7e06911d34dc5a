package listing

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestChangesAreWhatOthersThanTheSupervisorDid(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) error { return os.WriteFile(at(name), []byte(text), 0o644) }
	if err := errors.Join(os.MkdirAll(at("repo/sub"), 0o755), write("repo/kept", "1"), write("repo/changed", "1"),
		write("repo/deleted", "1"), write("repo/touched", "1"), write("repo/mode", "1"), write("repo/sub/x", "1"),
		os.Symlink("kept", at("repo/link"))); err != nil {
		t.Fatal(err)
	}
	r, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	before, err := os.Stat(at("repo/touched"))
	if err != nil {
		t.Fatal(err)
	}
	var later time.Time // the clock of a filesystem is coarse: wait until it has gone on
	for later.IsZero() || !later.After(before.ModTime()) {
		if err := write("clock", "x"); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(at("clock"))
		if err != nil {
			t.Fatal(err)
		}
		later = info.ModTime()
	}
	if err := errors.Join(os.Remove(at("clock")),
		write("repo/changed", "2"), os.Remove(at("repo/deleted")), os.Chmod(at("repo/mode"), 0o600),
		write("repo/touched", "2"), os.Chtimes(at("repo/touched"), before.ModTime(), before.ModTime()), // its times are as before
		os.Mkdir(at("repo/new"), 0o755), write("repo/new/odd\xc3", "1"), os.Remove(at("repo/link")), os.Symlink("/etc", at("repo/link")),
		os.RemoveAll(at("repo/sub")), os.MkdirAll(at("delivered/deep"), 0o755), write("delivered/deep/file", "1"), write("repo/kept", "3"),
		r.Accept("delivered/deep"), r.Accept("repo/kept")); err != nil {
		t.Fatal(err)
	}
	changes, err := r.Changes()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range changes {
		got = append(got, fmt.Sprintf("%s %q", c.Kind, string(c.Path)))
	}
	want := []string{`modified "repo/changed"`, `deleted "repo/deleted"`, `modified "repo/link"`, `modified "repo/mode"`, `created "repo/new"`,
		`created "repo/new/odd\xc3"`, `deleted "repo/sub"`, `deleted "repo/sub/x"`, `modified "repo/touched"`}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if err := os.RemoveAll(at("delivered")); err != nil {
		t.Fatal(err)
	}
	if err := r.Accept("delivered"); err != nil {
		t.Fatal(err)
	}
	if again, err := r.Changes(); err != nil || len(again) != len(changes) {
		t.Errorf("after a removal of the supervisor: %v, %v", again, err)
	}
}
