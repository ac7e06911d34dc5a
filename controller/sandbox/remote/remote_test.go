package remote

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/internal/layout"
	"agentsh/internal/statedir"
)

func TestTheOwnerIsMadeOnceAndNeverHalf(t *testing.T) {
	dir := t.TempDir()
	state, err := statedir.Open(layout.State(dir))
	if err != nil {
		t.Fatal(err)
	}
	first, err := Owner(state)
	if err != nil || first == "" {
		t.Fatalf("%q, %v", first, err)
	}
	if again, err := Owner(state); err != nil || again != first {
		t.Errorf("%q, %v; the first was %q", again, err, first)
	}
	files, err := filepath.Glob(filepath.Join(dir, "owner.json"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	for _, data := range []string{"", "{}", "{"} {
		if err := os.WriteFile(files[0], []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Owner(state); err == nil || !strings.Contains(err.Error(), files[0]) || !strings.Contains(err.Error(), "remove the file") {
			t.Errorf("%q: %v", data, err)
		}
	}
}
