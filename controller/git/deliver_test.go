package git

import (
	"os"
	"path/filepath"
	"testing"
)

// Only the files of a killed delivery are removed from the target.
func TestAKilledDeliveryIsUndone(t *testing.T) {
	write := func(dir string, names ...string) {
		for _, name := range names {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	tests := map[string]struct{ left, stays []string }{
		"before the pack":     {nil, nil},
		"in the pack":         {[]string{"tmp_pack-1.pack"}, nil},
		"before the index":    {[]string{"pack-1.pack"}, nil},
		"in the index":        {[]string{"pack-1.pack", "tmp_pack-1.idx"}, nil},
		"before the branches": {[]string{"pack-1.pack", "pack-1.idx"}, []string{"pack-1.idx", "pack-1.pack"}},
		"beside other work":   {[]string{"tmp_pack_x1y2z3", "pack-2.pack", "tmp_pack-1.pack"}, []string{"pack-2.pack", "tmp_pack_x1y2z3"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			place, dir := t.TempDir(), filepath.Join(t.TempDir(), "take")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			write(place, tt.left...)
			write(dir, "pack-1.pack", "pack-1.idx", "checked.idx")
			if err := os.WriteFile(filepath.Join(dir, packDirFile), []byte(place), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := Undo(dir); err != nil {
				t.Fatal(err)
			}
			left, err := filepath.Glob(filepath.Join(place, "*"))
			if err != nil || len(left) != len(tt.stays) {
				t.Fatalf("%q stay, %v", left, err)
			}
			for i, name := range left {
				if filepath.Base(name) != tt.stays[i] {
					t.Errorf("%s stays", name)
				}
			}
			if _, err := os.Lstat(dir); err == nil {
				t.Error("its directory stays")
			}
		})
	}
}
