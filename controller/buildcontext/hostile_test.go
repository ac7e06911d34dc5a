package buildcontext

import (
	"archive/zip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestAFileThatIsReplacedWhileTheArchiveIsMadeIsNotRead replaces a file between the list and the archive.
func TestAFileThatIsReplacedWhileTheArchiveIsMadeIsNotRead(t *testing.T) {
	for name, replace := range map[string]func(file string) error{
		"a pipe":              func(file string) error { return unix.Mkfifo(file, 0o600) },
		"a link to a secret":  func(file string) error { return os.Symlink(".env", file) },
		"another file":        func(file string) error { return os.WriteFile(file, []byte("B=2"), 0o600) },
		"a link to a pipe":    func(file string) error { return os.Symlink("pipe", file) },
		"no file":             func(string) error { return nil },
		"a directory instead": func(file string) error { return os.Mkdir(file, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := tree(t, map[string]string{"x": "A=1", ".env": "K=1", ".dockerignore": ".env\npipe"})
			if err := unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
				t.Fatal(err)
			}
			p := &packer{ctx: t.Context(), zip: zip.NewWriter(io.Discard), o: Options{Dir: dir, Dockerfile: "Dockerfile"}}
			if err := p.open(); err != nil {
				t.Fatal(err)
			}
			defer p.root.Close()
			if err := p.walk("."); err != nil || len(p.entries) != 1 {
				t.Fatal(p.entries, err)
			}
			file := filepath.Join(dir, "x")
			// The old file stays, so that the new one does not get its number.
			if err := errors.Join(os.Rename(file, filepath.Join(dir, "old")), replace(file)); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- p.add(p.entries[0]) }()
			select {
			case err := <-done:
				if err == nil || !strings.Contains(err.Error(), "x changed while it was read: try again") {
					t.Error(err)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("it waits for a pipe")
			}
		})
	}
}

func TestDirectoriesCountToo(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "one-more"), 0o700); err != nil {
		t.Fatal(err)
	}
	p := &packer{ctx: t.Context(), o: Options{Dir: dir, Dockerfile: "Dockerfile"}, entries: make([]entry, maxFiles)}
	if err := p.open(); err != nil {
		t.Fatal(err)
	}
	defer p.root.Close()
	err := p.walk(".")
	if err == nil || !strings.Contains(err.Error(), "20000 files and directories") {
		t.Error(err)
	}
}

func TestAListOfFilesEndsWithTheRequest(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := tree(t, map[string]string{"a/b": "x", ".dockerignore": "a\n!c"})
	p := &packer{ctx: ctx, o: Options{Dir: dir, Dockerfile: "Dockerfile"}}
	if err := p.open(); err != nil {
		t.Fatal(err)
	}
	defer p.root.Close()
	if err := p.walk("."); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// TestWhatIsShownOfNamesIsPlain has names that would move the cursor.
func TestWhatIsShownOfNamesIsPlain(t *testing.T) {
	const key = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZW\n-----END OPENSSH PRIVATE KEY-----\n"
	for _, files := range []map[string]string{
		{"a\x1b[2Jb\n/.env": "x"}, {"a\x1b[2J\nb": key}, {"a\x1b[2J\nb": "->/etc/passwd"}, {"a\x1b[2J\nb": "bl_secret_key"},
	} {
		_, _, err := pack(t, Options{Dir: tree(t, files), Dockerfile: "Dockerfile", Values: map[string]string{"the key": "bl_secret_key"}})
		if err == nil || strings.ContainsAny(err.Error(), "\x1b\n") {
			t.Errorf("%q", err)
		}
	}
}

func TestADockerignoreThatIsTooLargeIsNotCut(t *testing.T) {
	g, err := os.OpenRoot(tree(t, map[string]string{".dockerignore": strings.Repeat("#", maxIgnore) + "\n.env"}))
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if _, err := readIgnore(g, "Dockerfile"); err == nil || !strings.Contains(err.Error(), "256 KiB") {
		t.Error(err)
	}
}

// TestADirectoryNamedDockerfileIsNotDropped: the archive has one Dockerfile, so a directory of that name cannot be sent.
func TestADirectoryNamedDockerfileIsNotDropped(t *testing.T) {
	dir := tree(t, map[string]string{"Dockerfile/x": "x", "d/my.Dockerfile": "FROM x"})
	_, _, err := pack(t, Options{Dir: dir, Dockerfile: "d/my.Dockerfile", Extra: []File{{Name: "Dockerfile", Data: []byte("FROM x")}}})
	if err == nil || !strings.Contains(err.Error(), "Dockerfile: ") || !strings.Contains(err.Error(), "rename it") {
		t.Error(err)
	}
}

func TestTheArchiveItselfIsNotSent(t *testing.T) {
	dir := tree(t, map[string]string{"a": "x"})
	out, err := os.Create(filepath.Join(dir, "out.zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	made, err := Write(t.Context(), out, Options{Dir: dir, Dockerfile: "Dockerfile"})
	if err != nil || made.Files != 1 {
		t.Errorf("%+v, %v", made, err)
	}
}
