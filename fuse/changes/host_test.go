package changes

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
)

func TestChangesOfTheHostAreMarked(t *testing.T) {
	there := map[string]bool{}
	stat := func(rel string, _ *unix.Stat_t) error {
		if !there[rel] {
			return unix.ENOENT
		}
		return nil
	}
	for _, c := range []struct {
		name string
		do   func(r *Record)
		now  []string
		want []wire.Change
	}{
		{"made", func(r *Record) { r.HostChanged("a", false) }, []string{"a"}, []wire.Change{{Path: "a", Kind: wire.Created, By: wire.ByHost}}},
		{"made and removed", func(r *Record) { r.HostChanged("a", false); r.HostChanged("a", true) }, nil, nil},
		{"edited", func(r *Record) { r.HostChanged("a", true) }, []string{"a"}, []wire.Change{{Path: "a", Kind: wire.Modified, By: wire.ByHost}}},
		{"removed", func(r *Record) { r.HostChanged("a", true) }, nil, []wire.Change{{Path: "a", Kind: wire.Deleted, By: wire.ByHost}}},
		{"both", func(r *Record) { r.HostChanged("a", true); r.Modified("a") }, []string{"a"},
			[]wire.Change{{Path: "a", Kind: wire.Modified, By: wire.ByBoth}}},
		{"made inside and removed by the host", func(r *Record) { r.Created("a"); r.HostChanged("a", true) }, nil, nil},
		{"moved inside afterwards", func(r *Record) { r.HostChanged("d/a", true); r.Renamed("d", "e", true, false) }, []string{"e", "e/a"},
			[]wire.Change{{Path: "e", Kind: wire.Renamed, From: "d"}, {Path: "e/a", Kind: wire.Modified, By: wire.ByHost}}},
		{"a new baseline", func(r *Record) { r.HostChanged("a", true); r.Reset() }, []string{"a"}, nil},
	} {
		clear(there)
		for _, name := range c.now {
			there[name] = true
		}
		r := New()
		c.do(r)
		got, err := r.List(stat)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v, %v; want %+v", c.name, got, err, c.want)
		}
	}
}
