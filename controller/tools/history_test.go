package tools

import (
	"fmt"
	"strings"
	"testing"

	"agentsh/internal/wire"
)

// TestOfManyChangesOnlyThoseAreHeldThatAreShown has more than a result shows, by number and by the length of names.
func TestOfManyChangesOnlyThoseAreHeldThatAreShown(t *testing.T) {
	for _, tt := range []struct{ number, name, shown int }{
		{1, 10, 1}, {0, 10, 0}, {maxListed, 10, maxListed}, {maxListed + 1, 10, maxListed}, {1 << 20, 10, maxListed},
		{1 << 10, 4000, maxRead / 4000}, {2, 2 * maxRead, 1},
	} {
		var found shownChanges
		for range tt.number {
			if err := found.add(Change{Change: wire.Change{Path: wire.Name(strings.Repeat("n", tt.name)), Kind: wire.Deleted}}); err != nil {
				t.Fatal(err)
			}
		}
		var out changesOutput
		text := out.add(found)
		if len(found.list) != tt.shown || out.Truncated != (tt.number > tt.shown) || strings.Contains(text, "there is more") != out.Truncated {
			t.Errorf("%s: holds %d, truncated %t", fmt.Sprint(tt), len(found.list), out.Truncated)
		}
	}
}
