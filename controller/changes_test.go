package controller

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/controller/git"
	"agentsh/internal/wire"
)

func TestChangesShowEveryLineAndNothingElse(t *testing.T) {
	dir := t.TempDir()
	write := func(name, data string) wire.ManifestEntry {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
		return wire.ManifestEntry{Path: wire.Name(name), Type: "file", Mode: 0o644, Size: int64(len(data))}
	}
	files, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	base := func(name, data string) (git.TreeEntry, []byte) {
		return git.TreeEntry{Path: name, Kind: git.KindFile, Mode: 0o644, Size: int64(len(data))}, []byte(data)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "swapped")); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name           string
		entry          wire.ManifestEntry
		old            string
		status, why    string
		added, removed int
		diff           string
	}{
		{"modified", write("m", "a\nB\nc\n"), "a\nb\nc\n", "modified", "", 1, 1, "@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n"},
		{"added", write("n", "x\n"), "", "added", "", 1, 0, "@@ -0,0 +1,1 @@\n+x\n"},
		{"deleted", wire.ManifestEntry{Path: "gone"}, "x\n", "deleted", "", 0, 1, "@@ -1,1 +0,0 @@\n-x\n"},
		{"attributes do not hide it", write(".gitattributes", "* -diff\n"), "", "added", "", 1, 0, "@@ -0,0 +1,1 @@\n+* -diff\n"},
		{"binary", write("b", "a\x00b"), "", "added", whyBinary, 0, 0, ""},
		{"large", write("l", strings.Repeat("x\n", maxDiffFile)), "", "added", whyLarge, 0, 0, ""},
		{"only its mode", write("s", "same\n"), "same\n", "modified", "", 0, 0, ""},
		{
			"a link",
			wire.ManifestEntry{Path: "to", Type: "symlink", Target: "there"},
			"",
			"added",
			"",
			1,
			0,
			"@@ -0,0 +1,1 @@\n+symbolic link to there\n",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := &differ{base: map[string]git.TreeEntry{}, old: map[string][]byte{}, files: files, budget: maxDiffAll}
			if tt.old != "" {
				d.base[string(tt.entry.Path)], d.old[string(tt.entry.Path)] = base(string(tt.entry.Path), tt.old)
			}
			f, err := d.file(tt.entry)
			if err != nil || f.Status != tt.status || f.Why != tt.why || f.Added != tt.added || f.Removed != tt.removed || f.Diff != tt.diff {
				t.Errorf("%+v, %v", f, err)
			}
		})
	}
	d := &differ{files: files, budget: maxDiffAll}
	if f, err := d.file(wire.ManifestEntry{Path: "swapped", Type: "file", Size: 1}); err == nil {
		t.Errorf("a link was followed: %+v", f)
	}
}
