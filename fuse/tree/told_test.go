package tree

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// sized is a file of a size that changed at a time.
func sized(size int64, at time.Time) *unix.Stat_t {
	st := fileAt(7)
	st.Size = size
	st.Mtim, st.Ctim = unix.NsecToTimespec(at.UnixNano()), unix.NsecToTimespec(at.UnixNano())
	return st
}

// TestOlderAttributesReplaceNoNewerOnes: attributes that were read before a change of the
// host, and arrive after an open has compared the file, are not recorded. The kernel is
// sent no notice after the open for them, and keeps them in no case.
func TestOlderAttributesReplaceNoNewerOnes(t *testing.T) {
	before, after := sized(10, time.Unix(100, 0)), sized(20, time.Unix(200, 0))
	for late, tell := range map[string]func(h Host, n *Node, at Moment) (outdated, tells bool){
		"an answer": func(h Host, n *Node, at Moment) (bool, bool) {
			a := h.Tell(nil, n, before, at, 0)
			return a.Passing, a.Changed
		},
		"a comparison at a read": func(h Host, n *Node, at Moment) (bool, bool) {
			d := h.Differs(n, before, at, false)
			return d.Outdated, d.Tell
		},
		"a comparison after an event": func(h Host, n *Node, at Moment) (bool, bool) {
			d := h.Drop(n, before, at, false)
			return d.Outdated, d.Tell
		},
	} {
		t.Run(late, func(t *testing.T) {
			tr := New(dirAt(1))
			n := tr.Adopt(tr.root, "f", before)
			tr.Host.Tell(tr.root, n, before, tr.Host.Now(), 0)
			at := tr.Host.Now() // the host then changes the file, and a command opens it
			if d := tr.Host.Differs(n, after, tr.Host.Now(), true); !d.Tell {
				t.Fatalf("the open tells the kernel nothing: %+v", d)
			}
			if outdated, tells := tell(tr.Host, n, at); !outdated || tells {
				t.Errorf("outdated %v, tells the kernel %v", outdated, tells)
			}
			tr.Host.Noticed(n.ID())
			if d := tr.Host.Differs(n, after, tr.Host.Now(), true); d != (Difference{}) {
				t.Errorf("the next open: %+v", d)
			}
			if d := tr.Host.Drop(n, after, tr.Host.Now(), false); d != (Difference{}) {
				t.Errorf("the next event: %+v", d)
			}
		})
	}
}

// TestChangedAttributesAreNotKept: not before the kernel has been told to ask again.
func TestChangedAttributesAreNotKept(t *testing.T) {
	tr := New(dirAt(1))
	h := tr.Host
	n := tr.Adopt(tr.root, "f", sized(1, time.Unix(1, 0)))
	kept := func(size int64) bool {
		return !h.Tell(nil, n, sized(size, time.Unix(size, 0)), h.Now(), 0).Passing
	}
	if first, again := kept(1), kept(1); !first || !again {
		t.Error("attributes that have not changed are not kept")
	}
	if first, again := kept(2), kept(2); first || again || !h.Sure(n.ID()) || !kept(2) {
		t.Error("attributes that an answer brings are kept before the kernel asks again, or not after it")
	}
	if !h.Differs(n, sized(3, time.Unix(3, 0)), h.Now(), true).Tell || kept(3) {
		t.Error("attributes that an open found are kept while its notice is on its way")
	}
	if h.Noticed(n.ID()); !kept(3) {
		t.Error("attributes that an open found are not kept after its notice")
	}
}

// TestTheKernelAsksAgainAfterChangedAttributes: once, unless an open tells it before, or
// further attributes have changed.
func TestTheKernelAsksAgainAfterChangedAttributes(t *testing.T) {
	tr := New(dirAt(1))
	h := tr.Host
	n := tr.Adopt(tr.root, "f", sized(1, time.Unix(1, 0)))
	told := func(size int64) bool {
		return h.Tell(nil, n, sized(size, time.Unix(size, 0)), h.Now(), 0).Changed
	}
	if told(1) || h.Sure(n.ID()) {
		t.Error("the kernel asks again after the first attributes")
	}
	if !told(2) || !h.Sure(n.ID()) || h.Sure(n.ID()) {
		t.Error("the kernel does not ask again once")
	}
	if !told(3) || !h.Differs(n, sized(3, time.Unix(3, 0)), h.Now(), true).Tell || h.Sure(n.ID()) {
		t.Error("the kernel asks again after the notice of an open")
	}
	if !told(4) || !h.Sure(n.ID()) || !told(5) || !h.Sure(n.ID()) {
		t.Error("attributes that change after a notice are not asked for again")
	}
}

// TestPagesOfAYoungFileAreDroppedWithoutANotice: where two changes may have the same
// time, pages are dropped at each open until the time has passed, but unchanged
// attributes are not.
func TestPagesOfAYoungFileAreDroppedWithoutANotice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := New(dirAt(1))
		tr.CoarseTimes = true
		h := tr.Host
		n := tr.Adopt(tr.root, "f", sized(1, time.Unix(1, 0)))
		h.Tell(nil, n, sized(1, time.Unix(1, 0)), h.Now(), 0)
		young := sized(1, time.Now())
		h.Tell(nil, n, young, h.Now(), 0)
		h.Sure(n.ID())
		for range 2 {
			if d := h.Differs(n, young, h.Now(), true); d != (Difference{Differs: true}) {
				t.Errorf("an open of a young file: %+v", d)
			}
		}
		if d := h.Drop(n, young, h.Now(), false); d != (Difference{Differs: true}) {
			t.Errorf("an event of a young file: %+v", d)
		}
		<-time.After(Settling)
		if d := h.Drop(n, young, h.Now(), false); !d.Tell {
			t.Errorf("an event of a file that was young: %+v", d)
		}
		h.Noticed(n.ID())
		h.Tell(nil, n, young, h.Now(), 0)
		if d := h.Differs(n, young, h.Now(), true); d != (Difference{}) {
			t.Errorf("an open of an old file: %+v", d)
		}
	})
}

// TestEveryLostNameSettles: whichever way a node loses a name to the host, the kernel is
// told, and afterwards the name is not in use for ever.
func TestEveryLostNameSettles(t *testing.T) {
	for how, lose := range map[string]func(tr *Tree, dir, f *Node) (*Node, Link){
		"the name leads elsewhere": func(tr *Tree, dir, f *Node) (*Node, Link) {
			tr.Host.Lost(f, NamedPath{Link{dir, "f"}, "dir/f"})
			return f, Link{dir, "f"}
		},
		"another file has the name": func(tr *Tree, dir, f *Node) (*Node, Link) {
			tr.Adopt(dir, "f", fileAt(9))
			return f, Link{dir, "f"}
		},
		"a new file has the inode number": func(tr *Tree, dir, f *Node) (*Node, Link) {
			tr.Host.Made(fileAt(7))
			return f, Link{dir, "f"}
		},
		// The host has moved a directory below one that the tree has below it.
		"an impossible rename": func(tr *Tree, dir, _ *Node) (*Node, Link) {
			below := tr.Adopt(dir, "below", dirAt(3))
			tr.Move(Link{tr.root, "dir"}, Link{below, "new"})
			return dir, Link{tr.root, "dir"}
		},
		"an impossible exchange": func(tr *Tree, dir, _ *Node) (*Node, Link) {
			below := tr.Adopt(dir, "below", dirAt(3))
			tr.Exchange(Link{tr.root, "dir"}, Link{below, "new"})
			return dir, Link{tr.root, "dir"}
		},
	} {
		t.Run(how, func(t *testing.T) {
			tr := New(dirAt(1))
			dir := tr.Adopt(tr.root, "dir", dirAt(2))
			f := tr.Adopt(dir, "f", fileAt(7))
			var told []LostName
			tr.Host.OnLost(func(l LostName) { told = append(told, l) })
			n, at := lose(tr, dir, f)
			if want := (LostName{n.ID(), at.Parent.ID(), at.Name, n == dir}); !slices.Equal(told, []LostName{want}) {
				t.Fatalf("told %+v, want %+v", told, want)
			}
			if err := tr.Host.Missing(n); err != unix.ESTALE {
				t.Errorf("while the kernel uses the name: %v", err)
			}
			tr.Host.Settled(n.ID())
			if err := tr.Host.Missing(n); err != unix.ENOENT {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}

// A thread applies an answer before it asks again. So no answer about a directory that only
// one thread looks at is ignored, and the kernel keeps it at once.
func TestADirectoryOfOneThreadIsAskedForOnce(t *testing.T) {
	for _, c := range []struct {
		name    string
		kind    uint32
		threads []uint32 // of the answers after the notice; each has other attributes
		asks    bool     // after the last one
	}{
		{"one thread", unix.S_IFDIR, []uint32{7, 7, 7}, false},
		{"another thread", unix.S_IFDIR, []uint32{7, 7, 8}, true},
		{"both in turn", unix.S_IFDIR, []uint32{7, 8, 7}, true},
		{"a thread that is not known", unix.S_IFDIR, []uint32{0, 0}, true},
		{"between known answers", unix.S_IFDIR, []uint32{7, 0, 7}, true},
		{"a file", unix.S_IFREG, []uint32{7, 7}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := unix.Stat_t{Ino: 1, Mode: unix.S_IFDIR}
			tr := New(&root)
			at := func(size int64) *unix.Stat_t { return &unix.Stat_t{Ino: 2, Mode: c.kind, Nlink: 1, Size: size} }
			n := tr.Adopt(tr.root, "n", at(0))
			tell := func(size int64, thread uint32) Answer { return tr.Host.Tell(nil, n, at(size), tr.Host.Now(), thread) }
			tell(0, 7)
			if a := tell(1, 7); !a.Changed || !a.Passing {
				t.Errorf("the first change: %+v", a)
			}
			if !tr.Host.Sure(n.ID()) {
				t.Error("no notice after the first change")
			}
			for i, thread := range c.threads {
				a := tell(int64(i+2), thread)
				if last := i == len(c.threads)-1; last && (a.Changed != c.asks || a.Passing != c.asks) {
					t.Errorf("the last answer: %+v", a)
				}
			}
		})
	}
}

func TestTheKernelDropsPagesThatItMayHave(t *testing.T) {
	root := unix.Stat_t{Ino: 1, Mode: unix.S_IFDIR}
	tr := New(&root)
	at := func(size int64) *unix.Stat_t { return &unix.Stat_t{Ino: 2, Mode: unix.S_IFREG, Nlink: 1, Size: size} }
	n := tr.Adopt(tr.root, "n", at(0))
	for i, pages := range []bool{false, true} {
		if pages {
			tr.Paged(n)
		}
		size := int64(2 * i)
		tr.Host.Tell(nil, n, at(size), Latest, 0)
		if d := tr.Host.Drop(n, at(size+1), tr.Host.Now(), false); !d.Tell || d.Pages != pages {
			t.Errorf("pages %v: %+v", pages, d)
		}
	}
}
