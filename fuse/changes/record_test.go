package changes

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestTheChangeRecordKeepsNetEffects(t *testing.T) {
	cases := []struct {
		name string
		do   func(c *Record)
		want []string
	}{
		{"created", func(c *Record) { c.Created("a") }, []string{"created a"}},
		{"created and written", func(c *Record) { c.Created("a"); c.Modified("a") }, []string{"created a"}},
		{"created then deleted", func(c *Record) { c.Created("a"); c.Deleted("a") }, nil},
		{"modified", func(c *Record) { c.Modified("a"); c.Modified("a") }, []string{"modified a"}},
		{"modified then deleted", func(c *Record) { c.Modified("a"); c.Deleted("a") }, []string{"deleted a"}},
		{"deleted then created", func(c *Record) { c.Deleted("a"); c.Created("a") }, []string{"modified a"}},
		{"deleted, created, deleted", func(c *Record) { c.Deleted("a"); c.Created("a"); c.Deleted("a") }, []string{"deleted a"}},
		{"renamed", func(c *Record) { c.Renamed("a", "b", false, false) }, []string{"renamed b from a"}},
		{"renamed back", func(c *Record) { c.Renamed("a", "b", false, false); c.Renamed("b", "a", false, false) }, nil},
		{"renamed on", func(c *Record) { c.Renamed("a", "b", false, false); c.Renamed("b", "c", false, false) }, []string{"renamed c from a"}},
		{
			"renamed and written",
			func(c *Record) { c.Renamed("a", "b", false, false); c.Modified("b") },
			[]string{"renamed b from a", "modified b"},
		},
		{"renamed then deleted", func(c *Record) { c.Renamed("a", "b", false, false); c.Deleted("b") }, []string{"deleted a"}},
		{"created then renamed", func(c *Record) { c.Created("a"); c.Renamed("a", "b", false, false) }, []string{"created b"}},
		{"a new file saved over an old one", func(c *Record) { c.Created("t"); c.Renamed("t", "a", false, true) }, []string{"modified a"}},
		{"an old file renamed over another", func(c *Record) { c.Renamed("a", "b", false, true) }, []string{"renamed b from a"}},
		{
			"backup and new file",
			func(c *Record) { c.Renamed("a", "a~", false, false); c.Created("a") },
			[]string{"created a", "renamed a~ from a"},
		},
		{"directory renamed", func(c *Record) { c.Renamed("d", "e", true, false) }, []string{"renamed e from d"}},
		{
			"file in a renamed directory written",
			func(c *Record) { c.Renamed("d", "e", true, false); c.Modified("e/f") },
			[]string{"renamed e from d", "modified e/f"},
		},
		{
			"file in a renamed directory deleted",
			func(c *Record) { c.Renamed("d", "e", true, false); c.Deleted("e/f") },
			[]string{"deleted d/f", "renamed e from d"},
		},
		{"directory renamed there and back after a write", func(c *Record) {
			c.Renamed("d", "e", true, false)
			c.Modified("e/f")
			c.Renamed("e", "d", true, false)
		}, []string{"modified d/f"}},
		{"new directory with a file renamed", func(c *Record) {
			c.Created("d")
			c.Created("d/f")
			c.Renamed("d", "e", true, false)
		}, []string{"created e", "created e/f"}},
		{"moved out of a renamed directory to where it was", func(c *Record) {
			c.Renamed("d", "e", true, false)
			c.Created("d")
			c.Renamed("e/f", "d/f", false, false)
		}, []string{"created d", "renamed d/f from d/f", "renamed e from d"}},
		{"exchanged", func(c *Record) { c.Exchanged("a", "b") }, []string{"renamed a from b", "renamed b from a"}},
		{"exchanged twice", func(c *Record) { c.Exchanged("a", "b"); c.Exchanged("a", "b") }, nil},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			c := New()
			tc.do(c)
			var got []string
			list, err := c.List(func(rel string, _ *unix.Stat_t) error {
				if _, present := c.entries[rel]; present {
					return nil
				}
				return unix.ENOENT
			})
			if err != nil {
				t.Fatal(err)
			}
			for _, ch := range list {
				line := string(ch.Kind) + " " + string(ch.Path)
				if ch.From != "" {
					line += " from " + string(ch.From)
				}
				got = append(got, line)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
