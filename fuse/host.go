package fuse

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"agentsh/fuse/device"
	"agentsh/fuse/follow"
	"agentsh/fuse/tree"
	"agentsh/fuse/watch"
	"agentsh/internal/wire"
)

// The host may change a backing behind its mount. Whoever notices that calls
// hostChanged, from a goroutine that answers no request. A mount whose directories are
// marked by [tree.Host.SetWatched] depends on these calls.

// hostChanged compares an entry of a directory with what the kernel was last told and
// makes the kernel drop what is outdated. dir is the directory's node number. name is
// empty if the directory itself changed. written says that a write to the entry has ended.
// The kernel may take the notices about names later.
func (m *mount) hostChanged(dir uint64, name string, written bool) {
	m.tree.Moves.RLock()
	defer m.tree.Moves.RUnlock()
	parent := m.tree.Node(dir)
	if parent == nil {
		return
	}
	m.compare(parent, dir, false)
	if name == "" {
		return
	}
	paths := m.tree.Paths(parent)
	if len(paths) == 0 {
		return
	}
	child, id := m.tree.Host.Child(parent, name)
	if child == nil {
		if m.tree.Host.MaybeAbsent(dir, name) {
			m.kernel.ExpireLater(dir, name, m.follow.Expiring(dir))
		}
		return
	}
	m.compare(child, id, written)
	at := tree.NamedPath{Link: tree.Link{Parent: parent, Name: name}, Path: tree.Join(paths[0], name)}
	if m.tree.Child(parent, name) == child {
		var st unix.Stat_t
		if leads, err := m.nodes.leads(child, at.Path, &st); err == nil && !leads {
			m.nodes.lost(child, at)
		}
	}
}

// compareTries bounds how often attributes are read again because the kernel was told
// newer ones meanwhile.
const compareTries = 10

// compare makes the kernel drop the attributes, pages or listing of the node with a
// number if they differ from the backing. A name that does not lead to the node is lost.
// It waits for nothing: the kernel drops the pages of a file later, because it waits for
// those that are being read. Without attributes, the kernel asks for them before a read. After
// a write of the host has ended, pages are dropped whatever the attributes are: at the next
// open, or later.
func (m *mount) compare(n *tree.Node, id uint64, written bool) {
	m.kernel.drops.begin(id)
	switch d := m.differs(n, m.tree.Host.Now, written && !m.handles.passes(n)); {
	case d.Tell && d.Directory:
		m.kernel.NotifyInode(id)
		m.tree.Host.Noticed(id)
	case d.Tell && !d.Pages: // most files that commands make
		m.kernel.NotifyAttributes(id)
		m.tree.Host.Noticed(id)
	case d.Tell:
		m.kernel.NotifyAttributes(id)
		m.kernel.InodeLater(id, func() {
			m.tree.Host.Noticed(id)
			m.kernel.drops.end(id)
		})
		return
	case d.Differs:
		time.AfterFunc(tree.Settling, func() { m.compareAgain(n, id) })
	}
	m.kernel.drops.end(id)
}

// differs compares a node with the backing for compare. now is [tree.Host.Now].
func (m *mount) differs(n *tree.Node, now func() tree.Moment, written bool) tree.Difference {
	for try := range compareTries {
		at := now()
		if try == compareTries-1 {
			at = tree.Latest // the kernel asks once more than it needs to
		}
		var st unix.Stat_t
		if m.nodes.stat(n, &st) != nil {
			break
		}
		if d := m.tree.Host.Drop(n, &st, at, written); !d.Outdated {
			return d
		}
	}
	return tree.Difference{}
}

// compareAgain is [mount.compare] for a caller that holds no lock.
func (m *mount) compareAgain(n *tree.Node, id uint64) {
	m.tree.Moves.RLock()
	defer m.tree.Moves.RUnlock()
	m.compare(n, id, false)
}

// answerTime is longer than the kernel takes to apply what it is told with an answer.
const answerTime = 100 * time.Millisecond

// changed reports whether the file of a handle that is being opened is not as the kernel was
// told, or was not until now. The kernel then drops the attributes. st has the present ones,
// read after the moment at, or receives newer ones. When the open is answered, no notice about the file is under way: the kernel would
// ignore the size that it asks for at a read.
func (o *data) changed(h *handle, st *unix.Stat_t, at tree.Moment) (bool, error) {
	differs, err, sure := false, error(nil), false
	if at != 0 {
		differs, sure = o.kernel.compareRead(h.node, st, at)
	}
	if !sure {
		differs, err = o.compare(h, st, true, o.tree.Host.Now, o.kernel.NotifyAttributes)
	}
	o.kernel.awaitDrop(h.node.ID())
	return differs, err
}

// awaitDrop waits until the kernel has dropped the pages of a node that it is being told to drop.
func (k *kernel) awaitDrop(id uint64) {
	if done := k.drops.under(id); done != nil {
		k.StepAside() // the kernel may first wait for an answer of this server
		select {
		case <-done:
		case <-time.After(answerTime):
		}
	}
}

// compareRead compares a file that is being opened with what the kernel was told. Its
// attributes were read after the moment at. sure is false if the caller must read them again.
func (k *kernel) compareRead(n *tree.Node, st *unix.Stat_t, at tree.Moment) (differs, sure bool) {
	k.noticing.Lock()
	defer k.noticing.Unlock()
	d := k.tree.Host.Differs(n, st, at, true)
	k.heed(n.ID(), d, k.NotifyAttributes)
	return d.Differs, !d.Outdated
}

// heed calls notify if the kernel has to be told of a difference now. The caller holds
// noticing.
func (k *kernel) heed(id uint64, d tree.Difference, notify func(id uint64)) {
	if d.Tell {
		notify(id)
		time.AfterFunc(answerTime, func() { k.tree.Host.Noticed(id) })
	}
}

// compare compares the file of a handle with what the kernel was told, and calls notify if it
// has to be told now. now is [tree.Host.Now].
func (o *data) compare(
	h *handle, st *unix.Stat_t, opens bool, now func() tree.Moment, notify func(id uint64),
) (bool, error) {
	id := h.node.ID()
	o.kernel.noticing.Lock()
	defer o.kernel.noticing.Unlock()
	for range compareTries {
		at := now()
		if err := unix.Fstat(h.fd, st); err != nil {
			return false, err
		}
		d := o.tree.Host.Differs(h.node, st, at, opens)
		o.kernel.heed(id, d, notify)
		if !d.Outdated {
			return d.Differs, nil
		}
	}
	return true, nil
}

// drops are the notices under way that drop the pages of a node. The kernel may take
// them late, because it waits for pages.
type drops struct {
	mu     sync.Mutex
	byNode map[uint64]*drop
}

type drop struct {
	count int
	done  chan struct{}
}

func (d *drops) begin(id uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.byNode == nil {
		d.byNode = map[uint64]*drop{}
	}
	if d.byNode[id] == nil {
		d.byNode[id] = &drop{done: make(chan struct{})}
	}
	d.byNode[id].count++
}

func (d *drops) end(id uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	under := d.byNode[id]
	if under.count--; under.count == 0 {
		close(under.done)
		delete(d.byNode, id)
	}
}

// under returns what is closed at the end of the notices about a node, or nil.
func (d *drops) under(id uint64) <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if under := d.byNode[id]; under != nil {
		return under.done
	}
	return nil
}

// hostChangedEverything makes the kernel ask for all that it caches, because it is unknown
// what the host changed. It waits for nothing.
func (m *mount) hostChangedEverything() {
	m.forgetNames()
	for _, known := range m.tree.Below(m.tree.Root()) {
		if known.Kind == unix.S_IFDIR {
			m.kernel.NotifyInode(known.ID) // with the listing
		} else {
			m.kernel.NotifyAttributes(known.ID)
		}
	}
}

// forgetNames makes the kernel look up every name and absence again. Before Linux 6.16 it
// has no effect. While a directory is looked up again, getcwd(2) in it fails and links of
// /proc say that what is in it was deleted. So absences are not cached for a while: the host
// would soon make another name that the kernel has as absent.
func (m *mount) forgetNames() bool {
	m.kernel.busyUntil.Store(time.Now().Add(busyTime).UnixNano())
	m.tree.Host.ForgetAbsences()
	return m.kernel.NotifyEpoch()
}

// busyTime is how long absences are not cached after all names were forgotten.
const busyTime = 30 * time.Second

// busy reports whether the kernel had to forget all names a short while ago.
func (k *kernel) busy() bool { return time.Now().UnixNano() < k.busyUntil.Load() }

// dropEverything makes the kernel drop all that it caches. It may wait.
func (m *mount) dropEverything() {
	if !m.forgetNames() {
		m.kernel.invalidate("")
		return
	}
	for _, known := range m.tree.Below(m.tree.Root()) {
		m.kernel.NotifyInode(known.ID)
	}
}

// observed is called before the answer to a request that shows what is in the backing. So
// a command that sees a change of the host sees every earlier one: none comes from what
// the kernel caches. A read waits for no rename and no freeze. The supervisor is no
// command: what it replays must find the names that watchers know.
func (m *mount) observed(h *gofuse.InHeader) {
	if m.replays.from(h.Pid) {
		return
	}
	if h.Opcode == device.OpRead {
		if !m.tree.Moves.TryRLock() {
			return
		}
		m.tree.Moves.RUnlock()
	}
	m.shared.follower.Settle(m.follow, h.NodeId, m.kernel.StepAside)
	if h.Opcode != device.OpOpen {
		return
	}
	if n := m.tree.Host.Doubted(h.NodeId); n != nil { // since the open looked at the file
		m.compareAgain(n, h.NodeId)
	}
	m.kernel.awaitDrop(h.NodeId)
}

// hostWrote is [mount.hostChanged] for a change of a file that leaves its names as they
// are.
func (m *mount) hostWrote(dir uint64, name string, written bool) {
	m.tree.Moves.RLock()
	defer m.tree.Moves.RUnlock()
	if parent := m.tree.Node(dir); parent != nil {
		if child, id := m.tree.Host.Child(parent, name); child != nil {
			m.compare(child, id, written)
		}
	}
}

// hostEdit receives a change that another process made in a watched directory.
func (m *mount) hostEdit(dir uint64, e watch.Event) {
	edit, told := m.describeEdit(dir, e)
	if told && (e.PID == 0 || e.PID != os.Getppid()) { // the supervisor's own writes are no edits
		m.files.edits.Note(edit)
	}
	var known uint64
	if parent := m.tree.Node(dir); parent != nil && e.Name != "" {
		_, known = m.tree.Host.Child(parent, e.Name)
	}
	written := e.Op&watch.Modified != 0
	if e.Name != "" && e.Op&^(watch.Modified|watch.Attributes) == 0 {
		m.hostWrote(dir, e.Name, written)
	} else {
		m.hostChanged(dir, e.Name, written)
	}
	if told {
		m.replays.note(dir, known, e)
	}
}

// describeEdit returns what to tell of a change. It reports false for changes of the
// session, and where it is unknown who made them.
func (m *mount) describeEdit(dir uint64, e watch.Event) (follow.Edit, bool) {
	parent := m.tree.Node(dir)
	if parent == nil || e.By != watch.Fanotify {
		return follow.Edit{}, false
	}
	paths := m.tree.Paths(parent)
	if len(paths) == 0 {
		return follow.Edit{}, false
	}
	if e.Name == "" {
		return follow.Edit{Path: paths[0], Op: e.Op, Existed: true}, paths[0] != ""
	}
	child := m.tree.Child(parent, e.Name)
	unsure := false
	if e.PID != 0 && e.Op&^(watch.Modified|watch.Attributes) == 0 {
		mark, known := m.writer.mark(e.PID)
		if unsure = !known; mark != 0 || unsure && child != nil && m.handles.changing(child) {
			return follow.Edit{}, false // a command writes to the file itself, past the server
		}
	}
	existed := child != nil || e.Op&watch.Created == 0 && e.Op&watch.MovedTo == 0
	return follow.Edit{Path: tree.Join(paths[0], e.Name), Op: e.Op, Existed: existed, Unsure: unsure}, true
}

// writer is the process that made the last write past the server. The goroutine that
// receives events uses it.
type writer struct {
	pid  int
	held uint64
	at   time.Time
}

// writerAge bounds how long the mark of a process is not read again. Another process
// cannot get its number so soon.
const writerAge = 100 * time.Millisecond

// mark returns the mark of a process, see [markOf].
func (w *writer) mark(pid int) (mark uint64, known bool) {
	if pid == w.pid && time.Since(w.at) < writerAge {
		return w.held, true
	}
	if mark, known = markOf("/proc/" + strconv.Itoa(pid) + "/limits"); known && mark != 0 {
		*w = writer{pid, mark, time.Now()}
	}
	return mark, known
}

// tellEdits writes edits into the change record, and events of the first into the event
// stream.
func (m *mount) tellEdits(list []follow.Edit, events, more int) {
	for i, e := range list {
		m.files.record.HostChanged(e.Path, e.Existed)
		if i < events {
			m.access.reporter.host(wire.Event{Path: m.files.inside(e.Path), Op: editOps(e.Op), Count: e.Count})
		}
	}
	if more > 0 {
		m.access.reporter.host(wire.Event{Path: m.files.path, Count: more, Message: "(on further paths)"})
	}
}

// editOps names what was done, in the words of file rules.
func editOps(op watch.Op) string {
	var ops []string
	for _, o := range [...]struct {
		op   watch.Op
		name string
	}{
		{watch.Created, "create"}, {watch.Deleted, "delete"}, {watch.MovedFrom | watch.MovedTo, "rename"}, {watch.Modified, "write"},
		{watch.Attributes, "attributes"},
	} {
		if op&o.op != 0 {
			ops = append(ops, o.name)
		}
	}
	return strings.Join(ops, ",")
}

// host reports a change that a process outside the session made.
func (r *reporter) host(e wire.Event) {
	e.Time, e.Session, e.Type, e.Mechanism = time.Now(), r.session, wire.EventHost, watch.Fanotify.String()
	r.mu.Lock()
	begun := r.begun
	r.mu.Unlock()
	if !begun {
		return
	}
	select {
	case r.queue <- &report{event: e}:
	default:
		r.mu.Lock()
		r.lost++
		r.mu.Unlock()
	}
}

// changing reports whether a handle of n may write to its file past the server.
func (f *openFiles) changing(n *tree.Node) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for h := range f.handles.all {
		if h.node == n && h.mayChange && h.direct {
			return true
		}
	}
	return false
}
