package tree

import (
	"hash/maphash"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// inode identifies a file of the backing.
type inode struct{ dev, ino uint64 }

func inodeOf(st *unix.Stat_t) inode { return inode{st.Dev, st.Ino} }

// Link is one name of a node.
type Link struct {
	Parent *Node
	Name   string
}

// Node is one file that the kernel knows, or a former one that is still needed. A tree
// of a million files has a million nodes, so fields that few nodes need are in more.
// All fields but id, key and kind are guarded by tree.mu.
type Node struct {
	key       inode
	Link      // its first known name; without parent: the root, or unlinked
	more      *extra
	id        uint32 // 0: not in use
	lookups   uint32 // references of the kernel; manyLookups: never released
	children  uint32 // known entries of a directory
	nextName  uint32 // in the bucket of names; of a node not in use: the next such
	nextInode uint32 // in the bucket of inodes
	kind      uint16 // S_IFMT bits
	flags     nodeFlags
	allowed   uint16 // operations that the rules allow, in the generation allowedIn
	allowedIn uint32
	told      uint64 // see told.go
}

type nodeFlags uint16

const (
	isHashed   nodeFlags = 1 << iota // found by its inode
	isLinked                         // has got a name by link(2) in this mount: rules for all its names apply during the session
	isReplaced                       // a copy has replaced it under its name, see [Tree.Replace]
	isSmall                          // the last result of [smallFile]
	isWatched                        // see [Host.SetWatched]
	isLost                           // see [Host.Lost]
	isUnsure                         // see [Host.Sure]
	isDropped                        // see [Host.Drop]
	isStale                          // [IO.Stale] of a file without handles
	hasPages                         // see [Tree.Paged]
	isYoung                          // its pages may be older than its attributes, see [Host.Differs]
	isDoubted                        // the same, since the last open looked: see [Host.Doubt]
)

const manyLookups = 1<<32 - 1

// extra contains the fields that few nodes need.
type extra struct {
	links   []Link   // further known names
	former  []string // removed names whose rules still apply: all of a linked node, otherwise the last one
	gone    int      // O_PATH descriptor after the last name was removed; 0: none
	handles int      // open handles
	lostAt  string   // path of the last name that the host took, while there is no other
	io      IO
}

// extras returns the node's extra and creates it if necessary. The caller holds
// tree.mu.
func (n *Node) extras() *extra {
	if n.more == nil {
		n.more = &extra{}
	}
	return n.more
}

// names returns the known names of n. The caller holds tree.mu.
func (n *Node) names() []Link {
	if n.Parent == nil {
		return nil
	}
	out := []Link{n.Link}
	if n.more != nil {
		out = append(out, n.more.links...)
	}
	return out
}

// IO says how the open handles of a file do their input and output. The kernel allows
// one mode at a time for an inode, and one backing id. See fs/fuse/iomode.c. The code
// that manages the handles guards it.
type IO struct {
	BackingID int32
	Direct    int32 // handles that bypass the server
	Cached    int32 // handles that use the page cache of the mount
	Stale     bool  // written without the page cache of the mount since the last cached open
	Locked    bool  // a command has locked it: each close is reported from now on
	Mapped    bool  // may be mapped for writing outside the mount's page cache, also after its handles closed
}

// ID returns the number by which the kernel identifies the node.
func (n *Node) ID() uint64 { return uint64(n.id) }

// Kind returns the S_IFMT bits of the file.
func (n *Node) Kind() uint32 { return uint32(n.kind) }

const (
	chunkNodes = 512
	manyNodes  = 64 << 10 // from this number on the garbage collector runs more often
)

// nodes stores nodes by number and finds them by name and by inode. The two hash
// tables chain nodes by number, which costs 8 bytes a node.
type nodes struct {
	chunks     []*[chunkNodes]Node
	used       int
	begun      uint32 // nodes that have been in use; the first ones
	generation uint32 // see decisions.go
	unused     uint32 // first node that may be reused
	seed       maphash.Seed
	byName     []uint32
	byInode    []uint32
	others     map[otherName]*Node // names beside the first of a file
}

type otherName struct {
	parent uint32
	name   string
}

func newNodes() nodes {
	return nodes{
		generation: 1,
		seed:       maphash.MakeSeed(),
		byName:     make([]uint32, 64), byInode: make([]uint32, 64), others: map[otherName]*Node{},
	}
}

// at returns the node with a number that is in use.
func (t *nodes) at(id uint32) *Node { return &t.chunks[(id-1)/chunkNodes][(id-1)%chunkNodes] }

// get returns the node with a number of the kernel, or nil.
func (t *nodes) get(id uint64) *Node {
	if id == 0 || id > uint64(len(t.chunks)*chunkNodes) {
		return nil
	}
	if n := t.at(uint32(id)); n.id != 0 {
		return n
	}
	return nil
}

// add creates a node and adds it to the table of inodes.
func (t *nodes) add(key inode, kind uint32) *Node {
	n := t.next()
	n.key, n.kind = key, uint16(kind)
	t.used++
	if t.used > len(t.byInode) {
		t.rehash()
	}
	t.hash(n)
	return n
}

// next returns a node that is not in use, with its number. New ones are used in their order, so
// that memory of a chunk is touched when it is needed.
func (t *nodes) next() *Node {
	if id := t.unused; id != 0 {
		n := t.at(id)
		n.id, t.unused, n.nextName = id, n.nextName, 0
		return n
	}
	if int(t.begun) == len(t.chunks)*chunkNodes {
		t.grow()
	}
	t.begun++
	n := t.at(t.begun)
	n.id = t.begun
	return n
}

// grow allocates further nodes.
func (t *nodes) grow() {
	t.chunks = append(t.chunks, &[chunkNodes]Node{})
	if len(t.chunks) == manyNodes/chunkNodes {
		debug.SetGCPercent(25) // the nodes are most of the heap, and little of it is garbage
	}
}

// remove frees a node that has no names.
func (t *nodes) remove(n *Node) {
	t.unhash(n)
	id := n.id
	*n = Node{nextName: t.unused}
	t.unused = id
	t.used--
}

func (t *nodes) rehash() {
	t.byName, t.byInode = make([]uint32, 2*len(t.byName)), make([]uint32, 2*len(t.byInode))
	for _, chunk := range t.chunks {
		for i := range chunk {
			n := &chunk[i]
			if n.id == 0 {
				continue
			}
			if n.Parent != nil {
				t.nameIn(n)
			}
			if n.flags&isHashed != 0 {
				t.hash(n)
			}
		}
	}
}

func (t *nodes) inodeBucket(key inode) *uint32 {
	const mix = 0x9e3779b97f4a7c15 // 2^64 divided by the golden ratio
	h := (key.ino ^ key.dev<<40) * mix
	return &t.byInode[h>>32&uint64(len(t.byInode)-1)]
}

func (t *nodes) hash(n *Node) {
	b := t.inodeBucket(n.key)
	n.nextInode, *b = *b, n.id
	n.flags |= isHashed
}

// unhash removes n from the table of inodes, because the inode number may be used
// again.
func (t *nodes) unhash(n *Node) {
	if n.flags&isHashed == 0 {
		return
	}
	at := t.inodeBucket(n.key)
	for *at != n.id {
		at = &t.at(*at).nextInode
	}
	*at = n.nextInode
	n.flags &^= isHashed
}

func (t *nodes) findInode(key inode) *Node {
	for id := *t.inodeBucket(key); id != 0; {
		n := t.at(id)
		if n.key == key {
			return n
		}
		id = n.nextInode
	}
	return nil
}

func (t *nodes) nameBucket(parent uint32, name string) *uint32 {
	h := maphash.String(t.seed, name) + uint64(parent)*0x9e3779b97f4a7c15
	return &t.byName[h>>20&uint64(len(t.byName)-1)]
}

func (t *nodes) nameIn(n *Node) {
	b := t.nameBucket(n.Parent.id, n.Name)
	n.nextName, *b = *b, n.id
}

func (t *nodes) nameOut(n *Node) {
	at := t.nameBucket(n.Parent.id, n.Name)
	for *at != n.id {
		at = &t.at(*at).nextName
	}
	*at = n.nextName
}

// child returns the known entry of a directory, or nil.
func (t *nodes) child(parent *Node, name string) *Node {
	for id := *t.nameBucket(parent.id, name); id != 0; {
		n := t.at(id)
		if n.Parent == parent && n.Name == name {
			return n
		}
		id = n.nextName
	}
	if len(t.others) == 0 {
		return nil
	}
	return t.others[otherName{parent.id, name}]
}

// attach adds a name to n that n does not have yet.
func (t *nodes) attach(n *Node, l Link) {
	t.renamed(n)
	t.settle(n)
	if n.more != nil {
		n.more.lostAt = ""
	}
	l.Parent.children++
	if n.Parent == nil {
		n.Link = l
		t.nameIn(n)
		return
	}
	x := n.extras()
	x.links = append(x.links, l)
	t.others[otherName{l.Parent.id, l.Name}] = n
}

// detach removes a name of n.
func (t *nodes) detach(n *Node, l Link) {
	t.renamed(n)
	l.Parent.children--
	if n.Link != l {
		delete(t.others, otherName{l.Parent.id, l.Name})
		for i, have := range n.more.links {
			if have == l {
				n.more.links = append(n.more.links[:i], n.more.links[i+1:]...)
				break
			}
		}
		return
	}
	t.nameOut(n)
	n.Link, n.nextName = Link{}, 0
	if x := n.more; x != nil && len(x.links) > 0 {
		last := x.links[len(x.links)-1]
		x.links = x.links[:len(x.links)-1]
		delete(t.others, otherName{last.Parent.id, last.Name})
		n.Link = last
		t.nameIn(n)
	}
}
