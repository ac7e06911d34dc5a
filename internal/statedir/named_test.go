package statedir_test

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"agentsh/internal/statedir"
)

func TestThingsAreFoundByTheBeginningOfTheirNames(t *testing.T) {
	errNone, errBroken := errors.New("no such thing"), errors.New("broken")
	n := statedir.Named[string]{
		Dir: filepath.Join(t.TempDir(), "things"), Many: "things", None: errNone,
		Open: func(name string) (string, error) {
			switch name {
			case "made":
				return "", fs.ErrNotExist
			case "broken":
				return "", errBroken
			}
			return name, nil
		},
		Newer: func(a, b string) int { return cmp.Compare(b, a) },
	}
	if all, err := n.List(); len(all) > 0 || err != nil {
		t.Errorf("%q, %v", all, err)
	}
	if _, err := n.Find(statedir.Latest); !errors.Is(err, errNone) {
		t.Error(err)
	}
	for _, name := range []string{"a1", "a12", "b1", "broken", "made"} {
		if err := os.MkdirAll(filepath.Join(n.Dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(n.Dir, "c"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if all, err := n.List(); !slices.Equal(all, []string{"b1", "a12", "a1"}) || !errors.Is(err, errBroken) {
		t.Errorf("%q, %v", all, err)
	}
	for _, tt := range []struct{ name, want, says string }{
		{"a1", "a1", ""}, {"a12", "a12", ""}, {"b1", "b1", ""}, {"latest", "b1", ""},
		{"a", "", "2 things begin with \"a\": a1 and a12"}, {"b", "", "b1 and broken"},
		{"br", "", "broken"}, {"m", "", "made has no record"}, {"c", "", "no such thing"}, {"", "", "no such thing"},
	} {
		got, err := n.Find(tt.name)
		if got != tt.want || (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%q: %q, %v", tt.name, got, err)
		}
	}
}
