package extract

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"agentsh/internal/wire"
)

func TestTheNamesOfChangesAreBoundedExactly(t *testing.T) {
	const size = 8192
	name := func(i int) wire.Name { return wire.Name(fmt.Sprintf("%0*d", size-nameCost, i)) }
	for _, kind := range []wire.ChangeKind{wire.Modified, wire.Deleted, wire.Created} {
		r := newReplay("")
		for i := range maxNames / size {
			if err := r.add(wire.Change{Path: name(i), Kind: kind}); err != nil {
				t.Fatalf("%s: name %d: %v", kind, i, err)
			}
		}
		err := r.add(wire.Change{Path: name(maxNames), Kind: kind})
		if limit := (*wire.Error)(nil); !errors.As(err, &limit) || limit.Code != wire.CodeLimit || !strings.Contains(err.Error(), "32 MiB") {
			t.Errorf("%s: %v", kind, err)
		}
	}
	// What is new in a new directory comes with it.
	r := newReplay("")
	if err := r.add(wire.Change{Path: "new", Kind: wire.Created}); err != nil {
		t.Fatal(err)
	}
	for i := range maxNames/size + 1 {
		if err := r.add(wire.Change{Path: "new/" + name(i), Kind: wire.Created}); err != nil {
			t.Fatal(err)
		}
	}
}
