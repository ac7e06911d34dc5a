package tree

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

func fileAt(ino uint64) *unix.Stat_t {
	return &unix.Stat_t{Ino: ino, Mode: unix.S_IFREG | 0o644, Nlink: 1}
}

func dirAt(ino uint64) *unix.Stat_t {
	return &unix.Stat_t{Ino: ino, Mode: unix.S_IFDIR | 0o755, Nlink: 2}
}

// TestTheTreeFindsWhatItKnows makes, moves, swaps, unlinks and forgets names at
// random and compares what is found with a map.
func TestTheTreeFindsWhatItKnows(t *testing.T) {
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 7))
		tr := New(dirAt(1))
		dirs := []*Node{tr.root}
		for i := range uint64(9) {
			dirs = append(dirs, tr.Adopt(dirs[r.IntN(len(dirs))], fmt.Sprintf("dir%d", i), dirAt(2+i)))
		}
		want := map[Link]uint64{}
		var taken []Link
		for step := range 4000 {
			l := Link{dirs[r.IntN(len(dirs))], fmt.Sprintf("n%d", r.IntN(400))}
			to := Link{dirs[r.IntN(len(dirs))], fmt.Sprintf("n%d", r.IntN(400))}
			taken = append(taken, l, to)
			have, there := want[l], want[to]
			switch r.IntN(5) {
			case 0, 1:
				if have == 0 {
					want[l] = uint64(100 + step)
					tr.Adopt(l.Parent, l.Name, fileAt(want[l]))
				}
			case 2:
				if have != 0 && there == 0 {
					tr.Move(l, to)
					want[to] = have
					delete(want, l)
				}
			case 3:
				if have != 0 && there != 0 && l != to {
					tr.Exchange(l, to)
					want[l], want[to] = there, have
				}
			case 4:
				if have != 0 {
					n := tr.child(l.Parent, l.Name)
					tr.Unlink(l.Parent, l.Name, 0)
					tr.Forget(uint64(n.id), 1)
					delete(want, l)
				}
			}
		}
		for _, l := range taken {
			n := tr.child(l.Parent, l.Name)
			switch ino := want[l]; {
			case ino == 0 && n != nil:
				t.Fatalf("seed %d: %s is found and should not be", seed, l.Name)
			case ino != 0 && (n == nil || n.key.ino != ino || tr.Node(uint64(n.id)) != n || tr.findInode(n.key) != n):
				t.Fatalf("seed %d: %s is not found", seed, l.Name)
			}
		}
		if tr.used != len(want)+len(dirs) {
			t.Errorf("seed %d: %d nodes for %d names", seed, tr.used, len(want)+len(dirs))
		}
	}
}

func TestANodeLivesAsLongAsSomethingNeedsIt(t *testing.T) {
	tr := New(dirAt(1))
	dir := tr.Adopt(tr.root, "d", dirAt(2))
	n := tr.Adopt(dir, "f", fileAt(3))
	id := uint64(n.id)
	tr.Forget(uint64(dir.id), 1)
	if tr.Node(uint64(dir.id)) != dir {
		t.Error("a directory went before what is in it")
	}
	tr.Open(n)
	tr.Forget(id, 1)
	if tr.Node(id) != n {
		t.Error("an open file went")
	}
	tr.Close(n)
	if tr.Node(id) != nil || tr.used != 1 {
		t.Errorf("%d nodes are left", tr.used)
	}
	n = tr.Adopt(tr.root, "a", fileAt(4))
	tr.HardLinked(n)
	tr.Adopt(tr.root, "b", fileAt(4))
	if names, _ := tr.Bindings(n); len(names) != 2 || n.lookups != 2 {
		t.Errorf("names %q, %d references", names, n.lookups)
	}
	tr.Unlink(tr.root, "a", 0)
	if names, all := tr.Bindings(n); len(names) != 1 || names[0] != "b" || len(all) != 2 {
		t.Errorf("after the loss of a name: %q, bound by %q", names, all)
	}
	tr.Forget(uint64(n.id), 2)
	if tr.child(tr.root, "b") != n {
		t.Error("a hard linked file lost what binds it")
	}
	tr.Unlink(tr.root, "b", 0)
	if tr.used != 1 {
		t.Errorf("%d nodes are left", tr.used)
	}
}

// bytesPerFile is what the server may use for a file it knows.
const bytesPerFile = 200

func TestKnownFilesTakeLittleMemory(t *testing.T) {
	const files = 200_000
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	tr := New(dirAt(1))
	dir := tr.root
	for i := range uint64(files) {
		if i%100 == 0 {
			dir = tr.Adopt(tr.root, fmt.Sprintf("directory-%d", i), dirAt(10+i))
		}
		tr.Adopt(dir, fmt.Sprintf("some-file-%d.go", i), fileAt(1<<32+i))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := float64(after.HeapAlloc-before.HeapAlloc) / files
	t.Logf("%.0f bytes", each)
	if each > bytesPerFile*0.7 { // what is collected late comes on top
		t.Errorf("a known file takes %.0f bytes", each)
	}
	runtime.KeepAlive(tr)
}

// TestTheLastGenerationCachesNothing: a generation does not use a number twice.
func TestTheLastGenerationCachesNothing(t *testing.T) {
	tr := New(&unix.Stat_t{Ino: 1, Mode: unix.S_IFDIR})
	n := tr.Adopt(tr.root, "f", &unix.Stat_t{Ino: 2, Mode: unix.S_IFREG, Nlink: 1})
	const read = 1
	tr.CacheAllowed(n, read, tr.generation)
	if _, at := tr.Cached(uint64(n.id), read); !at.Allowed {
		t.Error("what was allowed is not remembered")
	}
	if _, at := tr.Cached(uint64(n.id), 2); at.Allowed {
		t.Error("another operation is allowed")
	}
	before := tr.generation
	tr.ForgetAllowed()
	tr.CacheAllowed(n, read, before) // was decided by the rules before
	if _, at := tr.Cached(uint64(n.id), read); at.Allowed {
		t.Error("what the rules before allowed is remembered")
	}
	tr.generation = 1<<32 - 2
	tr.ForgetAllowed()
	tr.ForgetAllowed()
	tr.CacheAllowed(n, read, tr.generation)
	if _, at := tr.Cached(uint64(n.id), read); at.Allowed || tr.generation != 1<<32-1 {
		t.Errorf("generation %d remembers", tr.generation)
	}
}

// A mount begins with memory for many nodes. What no node was in yet is not written to, so that
// an idle session does without.
func TestNodesThatWereNeverUsedAreNotWrittenTo(t *testing.T) {
	all := newNodes()
	var used []*Node
	for i := range uint64(chunkNodes) - 2 {
		used = append(used, all.add(inode{1, i}, 0))
	}
	for _, n := range used {
		all.remove(n)
	}
	for range used {
		all.add(inode{2, uint64(all.used)}, 0)
	}
	if len(all.chunks) != 1 || all.used != chunkNodes-2 {
		t.Fatalf("%d nodes in %d chunks", all.used, len(all.chunks))
	}
	for i, n := range all.chunks[0][chunkNodes-2:] {
		if n != (Node{}) {
			t.Errorf("node %d: %+v", chunkNodes-1+i, n)
		}
	}
	for all.used < 2*chunkNodes {
		if n := all.add(inode{3, uint64(all.used)}, 0); n.ID() != uint64(all.used) || all.get(n.ID()) != n {
			t.Fatalf("node %d has the number %d", all.used, n.ID())
		}
	}
}
