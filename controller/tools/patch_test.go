package tools

import (
	"context"
	"strings"
	"testing"
)

func TestPatchesOfBothForms(t *testing.T) {
	const file = "one\ntwo\nthree\nfour\nfive\n"
	for name, tt := range map[string]struct{ before, patch, after, wrong string }{
		"unified": {file, "--- a/f\n+++ b/f\n@@ -2,2 +2,2 @@\n two\n-three\n+3\n", "one\ntwo\n3\nfour\nfive\n", ""},
		"unified, moved by other changes": {"zero\n" + file, "--- a/f\t2026\n+++ b/f\n@@ -2,2 +2,3 @@ func\n two\n-three\n+3\n+3b\n",
			"zero\none\ntwo\n3\n3b\nfour\nfive\n", ""},
		"unified, created":  {"", "--- /dev/null\n+++ b/f\n@@ -0,0 +1,2 @@\n+a\n+b\n", "a\nb\n", ""},
		"unified, deleted":  {"a\n", "--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n", "", ""},
		"no line end":       {"a\nb", "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+c\n\\ No newline at end of file\n", "a\nc", ""},
		"a line end is new": {"a\nb", "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+b\n", "a\nb\n", ""},
		"lines of Windows":  {"a\r\nb\r\n", "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n", "a\r\nc\r\n", ""},
		"the nearest place": {"x\ny\nx\ny\nx\n", "--- a/f\n+++ b/f\n@@ -3 +3 @@\n-x\n+z\n", "x\ny\nz\ny\nx\n", ""},
		"two hunks": {file, "--- a/f\n+++ b/f\n@@ -1 +1,2 @@\n-one\n+1\n+1b\n@@ -5 +6 @@\n-five\n+5\n",
			"1\n1b\ntwo\nthree\nfour\n5\n", ""},
		"envelope":                 {file, "*** Begin Patch\n*** Update File: f\n@@ two\n-three\n+3\n four\n*** End Patch", "one\ntwo\n3\nfour\nfive\n", ""},
		"envelope, at the end":     {"x\ny\nx\n", "*** Begin Patch\n*** Update File: f\n@@\n-x\n+z\n*** End of File\n*** End Patch\n", "x\ny\nz\n", ""},
		"envelope, created":        {"", "*** Begin Patch\n*** Add File: f\n+a\n+\n+b\n*** End Patch\n", "a\n\nb\n", ""},
		"blanks at line ends":      {"a  \nb\n", "*** Begin Patch\n*** Update File: f\n a\n-b\n+c\n*** End Patch\n", "a\nc\n", ""},
		"lines that are not there": {file, "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-six\n+6\n", "", `hunk 1: its old lines are not in the file`},
		"no such line before":      {file, "*** Begin Patch\n*** Update File: f\n@@ six\n-one\n+1\n*** End Patch\n", "", `no line is "six"`},
		"counts that are wrong":    {file, "--- a/f\n+++ b/f\n@@ -1,3 +1 @@\n-one\n+1\n", "", "has 1 old and 1 new lines, and its @@ line says 3 and 1"},
		"lines after a hunk":       {file, "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-one\n+1\n+1b\n", "", "line 6 of the patch is after the end of its hunk"},
		"cut off":                  {file, "*** Begin Patch\n*** Update File: f\n-one\n+1\n", "", "no *** End Patch"},
		"no patch":                 {file, "hello\n", "", "names no file"},
		"binary":                   {file, "--- a/f\n+++ b/f\nBinary files a/f and b/f differ\n", "", "binary files are not patched"},
		"a file twice":             {file, "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-one\n+1\n--- a/f\n+++ b/f\n@@ -2 +2 @@\n-two\n+2\n", "", `has "f" twice`},
	} {
		t.Run(name, func(t *testing.T) {
			files, err := parsePatch(tt.patch)
			got := ""
			if err == nil {
				got, err = files[0].apply(tt.before, newEffort(context.Background()))
			}
			if tt.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wrong) {
					t.Errorf("%q, %v", got, err)
				}
				return
			}
			if err != nil || got != tt.after {
				t.Errorf("%q, %v, want %q", got, err, tt.after)
			}
		})
	}
}

func FuzzPatch(f *testing.F) {
	f.Add("--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n", "one\ntwo\n")
	f.Add("*** Begin Patch\n*** Update File: f\n@@ one\n-two\n+2\n*** End Patch\n", "one\ntwo\n")
	f.Add("*** Begin Patch\n*** Add File: f\n+two\n*** Delete File: g\n*** End Patch\n", "")
	f.Fuzz(func(t *testing.T, patch, before string) {
		files, err := parsePatch(patch)
		if err != nil {
			return
		}
		for _, one := range files {
			if one.from == "" && one.to == "" {
				t.Errorf("%q: a file without a name", patch)
			}
			_, _ = one.apply(before, newEffort(context.Background())) // an error, or a text, and an end
		}
	})
}
