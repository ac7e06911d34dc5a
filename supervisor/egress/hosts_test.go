package egress

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestTheHostsFileIsRead: for names that are asked for, and for addresses that a program
// took from it.
func TestTheHostsFileIsRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hosts")
	text := "# comment\n198.51.100.7 Store.test store # the store\n2001:db8::7 store.test\n198.51.100.8\nnonsense x\n198.51.100.9 bad..name 10.0.0.1\n"
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	n := newNames(nil, 4)
	n.hosts = &hostsFile{path: file}
	n.ask = func(context.Context, string) ([]netip.Addr, time.Duration, error) { return nil, 0, errors.New("asked") }
	got, err := n.lookup(t.Context(), "store.test")
	if want := []netip.Addr{netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("2001:db8::7")}; err != nil || !slices.Equal(got, want) {
		t.Errorf("store.test is %v, %v", got, err)
	}
	if _, err := n.lookup(t.Context(), "other.test"); err == nil || err.Error() != "asked" {
		t.Errorf("another name: %v", err)
	}
	for addr, want := range map[string][]string{
		"198.51.100.7": {"store.test", "store"}, "2001:db8::7": {"store.test"}, "198.51.100.8": nil, "198.51.100.9": nil,
	} {
		if got := n.of(netip.MustParseAddr(addr)); !slices.Equal(got, want) {
			t.Errorf("the names of %s are %q, want %q", addr, got, want)
		}
	}
	if err := os.WriteFile(file, []byte("198.51.100.7 renamed.test\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	n.hosts.checked = time.Time{} // a second later
	if got := n.of(netip.MustParseAddr("198.51.100.7")); !slices.Equal(got, []string{"renamed.test"}) {
		t.Errorf("after a change the names are %q", got)
	}
}
