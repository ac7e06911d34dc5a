package cli

import (
	"os"
	"path/filepath"
	"testing"
)

func TestManIsFoundInPATH(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", "relative:"+dir)
	if got := findMan(); got != "" {
		t.Errorf("%q without a program", got)
	}
	man := filepath.Join(dir, "man")
	if err := os.WriteFile(man, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := findMan(); got != "" {
		t.Errorf("%q may not be executed", got)
	}
	if err := os.Chmod(man, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := findMan(); got != man {
		t.Errorf("%q, want %q", got, man)
	}
}
