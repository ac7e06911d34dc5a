package notify

import (
	"os"
	"path/filepath"
	"testing"

	"agentsh/seccomp/target"
)

// What a file begins with is believed for as long as its mount is read-only, and
// for this version of it only.
func TestFirstBytesAreReadAgainWhereTheyCanChange(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "program")
	if err := os.WriteFile(name, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	root, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	h, err := target.ResolveIn(root, name)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	k := shebangCache{known: map[fileVersion][]byte{}}
	k.add(h, []byte("\x7fELF"))
	if head, err := k.of(h); err != nil || string(head) != "#!/bin/sh\n" {
		t.Errorf("a file that can be written begins with %q, %v", head, err)
	}
	for i := range 2 * maxShebangs {
		h.Stat.Size = int64(i)
		k.add(h, nil)
	}
	if len(k.known) > maxShebangs {
		t.Errorf("%d are kept", len(k.known))
	}
}
