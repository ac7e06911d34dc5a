package snapshot

import (
	"strings"
	"testing"
)

func TestASessionThatCouldNameAnotherDirectoryIsRefused(t *testing.T) {
	store, err := OpenStore(t.TempDir() + "/store")
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]bool{
		"AZaz09_-": true, strings.Repeat("s", 64): true,
		"": false, strings.Repeat("s", 65): false, "..": false, "a/b": false, "a.b": false, "a\n": false, "a\x00b": false, "é": false,
	} {
		s, err := store.NewSession(Record{Session: id})
		if (err == nil) != want {
			t.Errorf("session %q: %v", id, err)
		}
		if err == nil {
			_ = s.Close()
		}
	}
}
