package fuse

import (
	"slices"
	"sync"
	"sync/atomic"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"agentsh/fuse/tree"
	"agentsh/internal/gitguard"
	"agentsh/policy"
)

// stage is the new content of a guarded file that is being written. It stays in memory
// until the file is closed. Then the content is checked and installed, or discarded.
type stage struct {
	mu    sync.Mutex
	data  []byte
	dirty bool
	uses  int // handles; guarded by stages.mu
}

// stages are the guarded files that are open for writing.
type stages struct {
	mu   sync.Mutex
	by   map[*tree.Node]*stage
	some atomic.Int32
}

// of returns the stage of a file, or nil.
func (s *stages) of(n *tree.Node) *stage {
	if s.some.Load() == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.by[n]
}

// maxStages bounds the memory of what is written to guarded files at one time.
const maxStages = 256

// begin opens a stage with data as its content, unless the file already has one. It
// returns nil if there are too many stages.
func (s *stages) begin(n *tree.Node, data []byte) *stage {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by == nil {
		s.by = map[*tree.Node]*stage{}
	}
	st := s.by[n]
	if st == nil {
		if len(s.by) >= maxStages {
			return nil
		}
		st = &stage{data: data}
		s.by[n] = st
		s.some.Add(1)
	}
	st.uses++
	return st
}

// end ends one use of a stage.
func (s *stages) end(n *tree.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st := s.by[n]; st != nil {
		if st.uses--; st.uses == 0 {
			delete(s.by, n)
			s.some.Add(-1)
		}
	}
}

// size returns the length that the file will have.
func (s *stage) size() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(len(s.data))
}

// resize truncates or extends the staged content.
func (s *stage) resize(size int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if size > gitguard.MaxFile {
		return unix.EFBIG
	}
	if s.dirty = true; size <= int64(len(s.data)) {
		s.data = s.data[:size:size]
		return nil
	}
	s.data = append(s.data, make([]byte, size-int64(len(s.data)))...)
	return nil
}

func (s *stage) write(data []byte, off int64) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	end := off + int64(len(data))
	if off < 0 || end > gitguard.MaxFile {
		return 0, unix.EFBIG
	}
	if grow := end - int64(len(s.data)); grow > 0 {
		s.data = append(s.data, make([]byte, grow)...)
	}
	s.dirty = true
	return copy(s.data[off:], data), nil
}

func (s *stage) read(buf []byte, off int64) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if off >= int64(len(s.data)) {
		return 0
	}
	return copy(buf, s.data[off:])
}

// writes reports whether an open with these flags may change a file.
func writes(flags uint32) bool {
	return flags&unix.O_ACCMODE != unix.O_RDONLY || flags&unix.O_TRUNC != 0
}

// guardsNode reports whether the content of a file is checked under one of its names.
func (r *repositories) guardsNode(names []string) bool {
	return r.on() && slices.ContainsFunc(names, r.guards)
}

// guardsMoved reports whether n was a guarded file when the host took its path. Nothing can
// be committed under its name.
func (r *repositories) guardsMoved(n *tree.Node, names, all []string) bool {
	if len(names) > 0 || !r.guardsNode(all) {
		return false
	}
	_, moved := r.tree.Host.Last(n)
	return moved
}

// open stages a guarded file that is opened for writing. fd is open for reading and
// belongs to the handle from now on.
func (r *repositories) open(n *tree.Node, fd int, flags uint32, data []byte, out *gofuse.OpenOut) gofuse.Status {
	s := r.stages.begin(n, data)
	if s == nil {
		tree.CloseFD(fd)
		return gofuse.Status(unix.ENFILE)
	}
	h := r.handles.prepare(n, fd, flags)
	h.stage = s
	r.tree.Paged(n)
	if flags&unix.O_TRUNC != 0 {
		_ = h.stage.resize(0) // size 0 is never too large
	}
	out.Fh = r.handles.add(h)
	out.OpenFlags = gofuse.FOPEN_DIRECT_IO
	return gofuse.OK
}

// openExisting is open for a file that exists.
func (r *repositories) openExisting(n *tree.Node, names []string, flags uint32, out *gofuse.OpenOut) gofuse.Status {
	var st unix.Stat_t
	fd, err := r.nodes.open(n, unix.O_RDONLY, &st)
	if err != nil {
		return gofuse.Status(errno(err))
	}
	data, err := r.content(names[0])
	if err == nil && len(data) > gitguard.MaxFile {
		err = unix.EFBIG
	}
	if err != nil {
		tree.CloseFD(fd)
		return gofuse.Status(errno(err))
	}
	return r.open(n, fd, flags, data, out)
}

// resize sets the size of the staged content of a guarded file, through a handle open
// for writing. The caller then handles the rest of the request.
func (r *repositories) resize(in *gofuse.SetAttrIn, n *tree.Node, h *handle, names []string) gofuse.Status {
	if h == nil && r.tree.Stale(n) {
		return gofuse.Status(unix.ESTALE)
	}
	size, ok := in.GetSize()
	switch {
	case !ok:
		return gofuse.OK
	case h != nil && h.stage != nil:
		in.Valid &^= gofuse.FATTR_SIZE
		return gofuse.Status(errno(h.stage.resize(int64(size))))
	case h == nil && r.guardsNode(names):
		return r.refuse(
			in.Pid,
			query{policy.OpWrite, names[0]},
			gitguard.Problem{Reason: "git reads this file: it is written as a whole", Hint: "use git config, or open the file and write it"},
		)
	}
	return gofuse.OK
}

// staged replaces the size in attributes by the size of the staged content. The kernel
// must not cache such attributes.
func (r *repositories) staged(n *tree.Node, a *gofuse.Attr) bool {
	s := r.stages.of(n)
	if s == nil {
		return false
	}
	a.Size = uint64(s.size())
	return true
}

// commit checks the content that was written through a handle and installs it.
// close(2) returns the result.
func (r *repositories) commit(tid uint32, h *handle) gofuse.Status {
	s := h.stage
	s.mu.Lock()
	dirty := s.dirty
	s.mu.Unlock()
	if !dirty {
		return gofuse.OK
	}
	r.kernel.StepAside()
	r.tree.Moves.Lock()
	defer r.tree.Moves.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	names := r.tree.Paths(h.node)
	if !s.dirty || len(names) == 0 {
		return gofuse.OK
	}
	rel := names[0]
	old, err := r.content(rel)
	if err != nil {
		return gofuse.Status(errno(err))
	}
	s.dirty = false
	if string(old) == string(s.data) {
		return gofuse.OK
	}
	if r.on() {
		if code := r.answer(tid, query{policy.OpWrite, rel}, r.check(rel, s.data, old)); !code.Ok() {
			s.data = old
			return code
		}
	}
	if err := r.put(h, rel, s.data); err != nil {
		return gofuse.Status(errno(err))
	}
	return gofuse.OK
}

// put installs the new content of a staged file. The node continues to represent the
// name: only stages write to the file.
func (r *repositories) put(h *handle, rel string, data []byte) error {
	p, err := r.files.locate(rel)
	if err != nil {
		return err
	}
	defer p.Close()
	var st unix.Stat_t
	if err := p.Stat(&st); err != nil {
		return err
	}
	r.files.savePrevious([]string{rel}, p)
	now, err := r.install(p, &st, data)
	if err != nil {
		return err
	}
	r.tree.Rekey(h.node, &now)
	r.handles.markStale(h)
	r.files.modified(rel)
	go r.kernel.NotifyInode(h.node.ID()) // ends after its notice to the kernel, which may wait for the answer to this request
	return nil
}
