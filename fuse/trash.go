package fuse

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
	"agentsh/policy"
)

// TrashName names the donated descriptor of the trash directory, which no
// session may see. It holds one file for each kept one and manifest.jsonl.
const TrashName = "trash"

const manifestName = "manifest.jsonl"

// TrashLimits bound what soft_delete keeps, over all sessions that used the
// same directory. What would exceed them is denied.
type TrashLimits struct {
	Bytes   int64 `json:"bytes"`
	Entries int   `json:"entries"`
}

// Trashed is one line of the manifest. A later line with the same id and Undone
// says that the file is not in the trash any more.
type Trashed struct {
	ID      string       `json:"id"`
	Time    time.Time    `json:"time"`
	Session string       `json:"session,omitempty"`
	Path    string       `json:"path,omitempty"` // inside the sandbox
	Raw     []byte       `json:"raw,omitempty"`  // the path, when it is not UTF-8
	Op      string       `json:"op,omitempty"`   // delete, rmdir, write, rename
	Type    string       `json:"type,omitempty"` // file, dir, symlink, other
	Mode    uint32       `json:"mode,omitempty"` // permission bits
	Size    int64        `json:"size,omitempty"` // bytes
	Target  string       `json:"target,omitempty"`
	Rule    *wire.RuleAt `json:"rule,omitempty"`
	Undone  string       `json:"undone,omitempty"` // restored, failed
}

// trash keeps files that soft_delete saves.
type trash struct {
	dir     int // descriptor of the directory
	limits  TrashLimits
	session string

	mu       sync.Mutex
	manifest *os.File
	kept     map[string]Trashed
	bytes    int64
	next     int
}

// openTrash takes the directory over and reads its manifest.
func openTrash(dir *os.File, limits TrashLimits, session string) (*trash, error) {
	defer dir.Close()
	fd, err := unix.FcntlInt(dir.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("trash: %w", err)
	}
	t := &trash{dir: fd, limits: limits, session: session, kept: map[string]Trashed{}, next: 1}
	mf, err := unix.Openat(fd, manifestName, unix.O_CREAT|unix.O_RDWR|unix.O_APPEND|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("trash: %s: %w", manifestName, err)
	}
	t.manifest = os.NewFile(uintptr(mf), manifestName)
	if err := t.read(t.manifest); err != nil {
		return nil, fmt.Errorf("trash: %s: %w", manifestName, err)
	}
	return t, nil
}

func (t *trash) read(r io.Reader) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		var e Trashed
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		t.count(e)
	}
	return lines.Err()
}

// count takes one manifest line into account.
func (t *trash) count(e Trashed) {
	var number int
	if _, err := fmt.Sscanf(e.ID, "%d", &number); err == nil && number >= t.next {
		t.next = number + 1
	}
	if e.Undone != "" {
		t.bytes -= t.kept[e.ID].Size
		delete(t.kept, e.ID)
		return
	}
	t.bytes += e.Size
	t.kept[e.ID] = e
}

func (t *trash) write(e Trashed) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if _, err := t.manifest.Write(append(line, '\n')); err != nil {
		return err
	}
	t.count(e)
	return nil
}

// keep saves what is at p before the operation of v changes or removes it, and
// returns the id in the trash. A file that is only removed is kept by a second
// link where the trash is on the same filesystem, else by a copy.
func (t *trash) keep(p place, st *unix.Stat_t, path string, v verdict) (string, error) {
	e := Trashed{Time: time.Now(), Session: t.session, Path: path, Op: v.op.String(), Mode: st.Mode & 0o7777, Type: "other"}
	if !utf8.ValidString(path) {
		e.Path, e.Raw = shown(path), []byte(path)
	}
	if v.dec.Rule != nil {
		e.Rule = &wire.RuleAt{Name: v.dec.Rule.Name, At: v.dec.Rule.Pos.String()}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	e.ID = fmt.Sprintf("%08d", t.next)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		e.Type, e.Size = "file", st.Size
	case unix.S_IFDIR:
		e.Type = "dir"
	case unix.S_IFLNK:
		e.Type = "symlink"
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(p.dirfd, p.name, buf)
		if err != nil {
			return "", err
		}
		e.Target = shown(string(buf[:n]))
	}
	if len(t.kept) >= t.limits.Entries || t.bytes+e.Size > t.limits.Bytes {
		return "", unix.EDQUOT
	}
	if e.Type == "file" {
		if err := t.save(p, e.ID, v.op != policy.OpWrite); err != nil {
			return "", err
		}
	}
	if err := t.write(e); err != nil {
		_ = unix.Unlinkat(t.dir, e.ID, 0) // the manifest's failure is what the caller hears
		return "", err
	}
	return e.ID, nil
}

func (t *trash) save(p place, id string, mayLink bool) error {
	if mayLink && p.name != "" {
		err := unix.Linkat(p.dirfd, p.name, t.dir, id, 0)
		if !errors.Is(err, unix.EXDEV) && !errors.Is(err, unix.EMLINK) {
			return err
		}
	}
	from, err := p.open(unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer closeFD(from)
	to, err := unix.Openat(t.dir, id, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	out := os.NewFile(uintptr(to), id)
	if err := copyAll(out, from); err != nil {
		out.Close()
		_ = unix.Unlinkat(t.dir, id, 0) // the copy's failure is what the caller hears
		return err
	}
	return out.Close()
}

// copyAll copies a file from its start, shared where the filesystem can.
func copyAll(to *os.File, from int) error {
	if unix.IoctlFileClone(int(to.Fd()), from) == nil {
		return nil
	}
	src, err := unix.FcntlInt(uintptr(from), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return err
	}
	in := os.NewFile(uintptr(src), "source")
	defer in.Close()
	if _, err := io.Copy(to, in); err != nil {
		return errno(errors.Unwrap(err))
	}
	return nil
}

// undo takes an entry out of the trash again.
func (t *trash) undo(id, why string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.kept[id]; !ok {
		return fmt.Errorf("the trash has no entry %q", id)
	}
	if err := unix.Unlinkat(t.dir, id, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return t.write(Trashed{ID: id, Time: time.Now(), Undone: why})
}

// find returns an entry and its path inside the sandbox.
func (t *trash) find(id string) (Trashed, string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, ok := t.kept[id]
	if !ok {
		return e, "", fmt.Errorf("the trash has no entry %q", id)
	}
	if e.Raw != nil {
		return e, string(e.Raw), nil
	}
	return e, e.Path, nil
}

// softDelete keeps what is at p for the rule of v and reports it. On failure
// the operation is denied.
func (m *mount) softDelete(tid uint32, v verdict, p place, st *unix.Stat_t) (id string, err error) {
	m.loop.stepAside()
	id, err = m.trash.keep(p, st, m.inside(v.rel), v)
	if err != nil {
		v.dec.Effect = policy.Deny
		v.diag.Message = strings.TrimSpace(v.diag.Message + " (it could not be kept in the trash: " + err.Error() + ")")
		m.report(tid, "", v)
		return "", err
	}
	m.report(tid, m.inside(v.rel)+" kept as "+id, v)
	return id, nil
}

// keepUndone drops what softDelete kept for an operation that then failed.
func (m *mount) keepUndone(id string) {
	if id != "" {
		_ = m.trash.undo(id, "failed") // a copy too many is no harm
	}
}

// restore puts a kept file back under its name, which must be free.
func (s *server) restore(id string) error {
	if s.trash == nil {
		return errors.New("there is no trash")
	}
	e, path, err := s.trash.find(id)
	if err != nil {
		return err
	}
	m := s.mountOf(path)
	if m == nil {
		return fmt.Errorf("%s is in no governed mount", shown(path))
	}
	rel := strings.Trim(path[len(m.path):], "/")
	if err := m.putBack(e, rel, s.trash.dir); err != nil {
		return fmt.Errorf("restore %s: %w", shown(path), err)
	}
	m.invalidate(rel)
	return s.trash.undo(id, "restored")
}

// putBack makes the entry at rel again.
func (m *mount) putBack(e Trashed, rel string, dir int) error {
	m.tree.moves.Lock()
	defer m.tree.moves.Unlock()
	p, err := m.backing.locate(rel)
	if err != nil {
		return err
	}
	defer p.close()
	switch e.Type {
	case "dir":
		err = unix.Mkdirat(p.dirfd, p.name, e.Mode)
	case "symlink":
		err = unix.Symlinkat(e.Target, p.dirfd, p.name)
	case "file":
		err = m.putFileBack(e, p, dir)
	default:
		return errors.New("only files, directories and symbolic links are restored")
	}
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := m.own(p, &st); err != nil {
		return err
	}
	m.changes.created(rel)
	return nil
}

func (m *mount) putFileBack(e Trashed, p place, dir int) error {
	from, err := unix.Openat(dir, e.ID, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer closeFD(from)
	to, err := p.open(unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, e.Mode&0o777)
	if err != nil {
		return err
	}
	out := os.NewFile(uintptr(to), p.name)
	defer out.Close()
	return copyAll(out, from)
}
