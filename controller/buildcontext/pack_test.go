package buildcontext

import (
	"archive/zip"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// tree makes a directory. A value that begins with an arrow is a link.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, data := range files {
		full := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, ok := strings.CutPrefix(data, "->"); ok {
			err = os.Symlink(target, full)
		} else {
			err = os.WriteFile(full, []byte(data), 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// packed is what an archive has: names, with the target of a link.
func pack(t *testing.T, o Options) (names []string, made Packed, err error) {
	t.Helper()
	var out bytes.Buffer
	made, err = Write(t.Context(), &out, o)
	if err != nil {
		return nil, made, err
	}
	r, err := zip.NewReader(bytes.NewReader(out.Bytes()), int64(out.Len()))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range r.File {
		name := f.Name
		if f.Mode()&fs.ModeSymlink != 0 {
			in, err := f.Open()
			if err != nil {
				t.Fatal(err)
			}
			target, err := io.ReadAll(in)
			if err != nil {
				t.Fatal(err)
			}
			name += "->" + string(target)
		} else if !strings.HasSuffix(name, "/") && f.Mode().Perm() != 0o755 && f.Mode().Perm() != 0o644 {
			t.Errorf("%s has the mode %v", name, f.Mode())
		}
		names = append(names, name)
	}
	return names, made, nil
}

func TestAnArchiveHasWhatDockerignoreLeaves(t *testing.T) {
	dir := tree(t, map[string]string{
		"Dockerfile": "FROM scratch", "a.txt": "a", "b.log": "b", "keep.log": "k", "node_modules/x/y.js": "y", "src/c.go": "c",
		"src/deep/d.tmp": "d", "docs/e.md": "e", "docs/README.md": "r", ".git/config": "url", "sub/.git": "gitdir: x", "l": "->src/c.go",
		"src/up": "->../a.txt", "dangling": "->src/none",
		".dockerignore": "# comment\n*.log\n!keep.log\n/node_modules/\n**/*.tmp\ndocs\n!docs/README.md\n",
	})
	names, made, err := pack(t, Options{Dir: dir, Dockerfile: "Dockerfile", Extra: []File{{Name: "Dockerfile", Data: []byte("FROM x")}}})
	want := []string{"a.txt", "dangling->src/none", "docs/README.md", "keep.log", "l->src/c.go", "src/",
		"src/c.go", "src/deep/", "src/up->../a.txt",
		"sub/", "Dockerfile"}
	if err != nil || !slices.Equal(names, want) {
		t.Errorf("%q, %v", names, err)
	}
	if made.Files != 8 || made.LeftOut == 0 {
		t.Errorf("%+v", made)
	}
}

func TestWhatMayNotBeSentIsNamed(t *testing.T) {
	const key = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZW\n-----END OPENSSH PRIVATE KEY-----\n"
	for _, tt := range []struct {
		name  string
		files map[string]string
		says  string // empty: it is sent
	}{
		{"an absolute link", map[string]string{"l": "->/etc/passwd"}, "l: this link leads out"},
		{"a link upwards", map[string]string{"a/l": "->../../x"}, "a/l: this link leads out"},
		{"a link through a link", map[string]string{"s/d": "->../t", "t/f": "", "s/x": "->d/../../etc"}, "s/x: this link leads out"},
		{"a link upwards in the middle", map[string]string{"x": "->none/../../y"}, "x: this link leads out"},
		{"a link to itself", map[string]string{"x": "->x"}, "x: this link leads out"},
		{"an excluded link", map[string]string{"l": "->/etc/passwd", ".dockerignore": "l"}, ""},
		{"a file of credentials", map[string]string{"config/.npmrc": "x"}, "config/.npmrc: files of this name"},
		{"variables", map[string]string{".env": "A=1"}, ".env: files of this name"},
		{"variables of an environment", map[string]string{".env.production": "A=1"}, ".env.production: files of this name"},
		{"an example of variables", map[string]string{".env.example": "A="}, ""},
		{"a key of SSH", map[string]string{"id_ed25519": "x"}, "id_ed25519: files of this name"},
		{"a key of Amazon's", map[string]string{"h/.aws/credentials": "x"}, "h/.aws/credentials: files of this name"},
		{"a private key in a file", map[string]string{"x.txt": "a\n" + key}, "x.txt: line 2 looks like a credential"},
		{"an agreed file", map[string]string{"x.txt": key, ".env": "A=1", ".dockerignore": "!x.txt\n!.env"}, ""},
		{"files agreed by a wildcard", map[string]string{".env": "A=1", ".dockerignore": "!.en*"}, ".env: files of this name"},
		{"the key of Blaxel", map[string]string{
			"x.bin": "\x00" + strings.Repeat("x", 3<<20) + "bl_secret_key", ".dockerignore": "!x.bin",
		}, "x.bin: it has the key"},
		{"two files", map[string]string{".env": "", ".npmrc": ""}, ".npmrc: files of this name"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := pack(t, Options{Dir: tree(t, tt.files), Dockerfile: "Dockerfile", Values: map[string]string{"the key": "bl_secret_key"}})
			if tt.says == "" && err != nil || tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)) {
				t.Errorf("%v", err)
			}
			if err != nil && (strings.Contains(err.Error(), "bl_secret") || strings.Contains(err.Error(), "b3Blbn")) {
				t.Errorf("the secret is shown: %v", err)
			}
		})
	}
	dir := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := pack(t, Options{Dir: dir, Dockerfile: "Dockerfile"}); err == nil || !strings.Contains(err.Error(), "pipe: neither") {
		t.Error(err)
	}
}

func TestAnArchiveHasABound(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "large"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(maxTotal + 1); err != nil {
		t.Fatal(err)
	}
	if _, _, err := pack(t, Options{Dir: dir, Dockerfile: "Dockerfile"}); err == nil || !strings.Contains(err.Error(), "512 MiB: exclude") {
		t.Error(err)
	}
}

func TestAnAddedFileReplacesNone(t *testing.T) {
	dir := tree(t, map[string]string{"own/x": "1"})
	for _, name := range []string{"own/x", "own", "own/x/y"} {
		if _, _, err := pack(t, Options{Dir: dir, Dockerfile: "Dockerfile", Extra: []File{{Name: name}}}); err == nil {
			t.Errorf("%s replaces a file", name)
		}
	}
}

func TestTheLastStageOfADockerfile(t *testing.T) {
	const text = "# escape=`\nFROM a AS one\nENTRYPOINT [\"x\"]\nFROM b\nRUN one `\n# in between\n  two\nrun <<END cat\nENTRYPOINT [\"no\"]\nEND\nEntrypoint [\"/y\", \"z\"]\n"
	d, err := ParseDockerfile("Dockerfile", text)
	want := []Instruction{{"FROM", "b", 4}, {"RUN", "one   two", 5}, {"RUN", "<<END cat", 8}, {"ENTRYPOINT", `["/y", "z"]`, 11}}
	if err != nil || !reflect.DeepEqual(d.Last, want) {
		t.Errorf("%+v, %v", d.Last, err)
	}
	if list, ok := d.Last[3].List(); !ok || !slices.Equal(list, []string{"/y", "z"}) {
		t.Errorf("%q", list)
	}
	for text, says := range map[string]string{"": "no FROM", "RUN x": "no FROM", "FROM x\nRUN a \\": ":2: ", "FROM x\nRUN <<A\n": ":2: "} {
		if _, err := ParseDockerfile("Dockerfile", text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func FuzzParseDockerfile(f *testing.F) {
	f.Add("FROM x\nRUN <<-'A' <<B\n\tA\nB\nCMD x \\\n y")
	f.Fuzz(func(t *testing.T, text string) {
		d, err := ParseDockerfile("Dockerfile", text)
		if err == nil && d.Last[0].Name != "FROM" {
			t.Errorf("%+v", d.Last)
		}
	})
}

func FuzzIgnore(f *testing.F) {
	f.Add("*.log\n!a/**/b\n[a-c]?\\*\n", "a/x/b")
	f.Fuzz(func(_ *testing.T, patterns, name string) {
		if g, err := parseIgnore(patterns); err == nil {
			_, _, _ = g.excluded(name)
		}
	})
}

func TestPatternsOfDockerignore(t *testing.T) {
	for _, tt := range []struct {
		patterns, name string
		excluded       bool
	}{
		{"*.md", "a.md", true}, {"*.md", "a/a.md", false}, {"**/*.md", "a.md", true}, {"**/*.md", "a/b/a.md", true},
		{"a/**", "a/b/c", true}, {"a/**", "ab", false}, {"a?c", "abc", true}, {"a?c", "a/c", false},
		{"[a-c]x", "bx", true}, {"[^a-c]x", "bx", false}, {"[!a-c]x", "bx", true},
		{"/a", "a/b", true}, {"a/", "a/b", true}, {"./a", "a", true}, {"../a", "a", false}, {`a\*b`, "a*b", true}, {`a\*b`, "axb", false},
		{"*\n!a", "a", false}, {"*\n!a", "a/b", false}, {"*\n!a\na/b", "a/b", true},
		{"a.b", "axb", false}, {"!a\na", "a", true}, {"é*", "éa", true},
		{"**", "a/b", true}, {"", ".git/config", true}, {"!.git", ".git/config", false}, {"", "a/.git", true},
		{"", "a.git", false}, {"a(b", "a(b", true},
	} {
		g, err := parseIgnore(tt.patterns)
		if err != nil {
			t.Fatalf("%q: %v", tt.patterns, err)
		}
		if got, _, err := g.excluded(tt.name); got != tt.excluded || err != nil {
			t.Errorf("%q, %s: %v", tt.patterns, tt.name, got)
		}
	}
	for _, bad := range []string{"a\n[", "a\n!", `x` + "\n" + `a\`, "a\n\xff", fmt.Sprint("a", strings.Repeat("\nx", maxPatterns))} {
		if _, err := parseIgnore(bad); err == nil {
			t.Errorf("%.20q is taken", bad)
		}
	}
}
