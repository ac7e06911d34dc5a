// Package trash stores the files that soft_delete saved in one session: a manifest
// of one JSON line for each entry, and the content of each file under its number.
package trash

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/beneath"
	"agentsh/internal/wire"
)

const manifestName = "manifest.jsonl"

// ErrInUse means that a running session uses the trash.
var ErrInUse = errors.New("a running session uses this trash")

// ErrFull means that the limits of the trash are reached.
var ErrFull error = unix.EDQUOT

// Limits limit the trash of one session.
type Limits struct {
	Bytes   int64 `json:"bytes"`
	Entries int   `json:"entries"`
}

// DefaultLimits limit the trash of all sessions of a user together.
var DefaultLimits = Limits{Bytes: 4 << 30, Entries: 200_000}

// Entry is one line of the manifest. A later line with the same ID and Removed
// set means that the file has left the trash.
type Entry struct {
	ID      string       `json:"id"`
	Time    time.Time    `json:"time"`
	Session string       `json:"session,omitempty"`
	Path    wire.Name    `json:"path,omitempty"` // inside the sandbox
	Op      string       `json:"op,omitempty"`   // delete, rmdir, write, rename
	Type    string       `json:"type,omitempty"` // file, dir, symlink, other
	Mode    uint32       `json:"mode,omitempty"` // permission bits
	UID     uint32       `json:"uid"`            // outside
	GID     uint32       `json:"gid"`
	Mtime   time.Time    `json:"mtime,omitzero"`
	Size    int64        `json:"size,omitempty"`   // bytes
	Holes   int64        `json:"holes,omitempty"`  // bytes of it that are holes, and take no room
	Target  []byte       `json:"target,omitempty"` // of a symbolic link
	Linked  bool         `json:"linked,omitempty"` // the file itself is kept, not a copy
	Rule    *wire.RuleAt `json:"rule,omitempty"`
	Removed string       `json:"removed,omitempty"` // restored, purged, failed
}

// Room returns the bytes that the entry takes in the trash.
func (e *Entry) Room() int64 { return e.Size - e.Holes }

// Trash holds the files that soft_delete saved in one session. It is safe for
// concurrent use. One process at a time has it open.
type Trash struct {
	dir     int // descriptor of the directory
	limits  Limits
	session string

	mu       sync.Mutex
	manifest *os.File // locked
	kept     map[string]Entry
	order    []string
	bytes    int64
	next     int
}

// Open reads the manifest of a trash and closes dir. [ErrInUse] is in the chain
// of the error if another process has it open. The caller closes the trash.
func Open(dir *os.File, limits Limits, session string) (*Trash, error) {
	defer dir.Close()
	fd, err := unix.FcntlInt(dir.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("trash: %w", err)
	}
	t := &Trash{dir: fd, limits: limits, session: session, kept: map[string]Entry{}, next: 1}
	mf, err := unix.Openat(fd, manifestName, unix.O_CREAT|unix.O_RDWR|unix.O_APPEND|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("trash: %s: %w", manifestName, err), unix.Close(fd))
	}
	t.manifest = os.NewFile(uintptr(mf), manifestName)
	if err := unix.Flock(mf, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrInUse
		}
		return nil, errors.Join(fmt.Errorf("trash: %w", err), t.Close())
	}
	if err := t.read(); err != nil {
		return nil, errors.Join(fmt.Errorf("trash: %s: %w", manifestName, err), t.Close())
	}
	return t, t.sweep()
}

// sweep removes files that the manifest does not list. A killed process leaves
// one if it dies before its line is written, or after a line of removal.
func (t *Trash) sweep() error {
	fd, err := unix.Openat(t.dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("trash: %w", err)
	}
	dir := os.NewFile(uintptr(fd), "trash")
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("trash: %w", err)
	}
	for _, name := range names {
		if _, kept := t.kept[name]; kept || name == manifestName {
			continue
		}
		if err := unix.Unlinkat(t.dir, name, 0); err != nil {
			return fmt.Errorf("trash: %s: %w", name, err)
		}
	}
	return nil
}

// Close closes the trash; its files stay.
func (t *Trash) Close() error { return errors.Join(t.manifest.Close(), unix.Close(t.dir)) }

// read reads the manifest. It cuts off a last line without an end, which a
// killed process left.
func (t *Trash) read() error {
	whole, err := eachLine(t.manifest, func(e Entry) { t.count(e) })
	if err != nil {
		return err
	}
	return t.manifest.Truncate(whole)
}

// eachLine calls f for every complete line and returns their length in bytes.
func eachLine(r io.Reader, f func(Entry)) (whole int64, err error) {
	lines := bufio.NewReader(r)
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return whole, nil
		}
		if err != nil {
			return whole, err
		}
		var e Entry
		if err := json.Unmarshal(line, &e); err != nil {
			return whole, fmt.Errorf("line %d: %w", n, err)
		}
		whole += int64(len(line))
		f(e)
	}
}

// count applies one line of the manifest.
func (t *Trash) count(e Entry) {
	var number int
	if _, err := fmt.Sscanf(e.ID, "%d", &number); err == nil && number >= t.next {
		t.next = number + 1
	}
	if e.Removed != "" {
		was := t.kept[e.ID]
		t.bytes -= was.Room()
		delete(t.kept, e.ID)
		return
	}
	t.bytes += e.Room()
	t.kept[e.ID] = e
	t.order = append(t.order, e.ID)
}

// write appends a line. It removes a partial line after an error, such as a
// full disk.
func (t *Trash) write(e Entry) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	end, err := t.manifest.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if _, err := t.manifest.Write(append(line, '\n')); err != nil {
		return errors.Join(err, t.manifest.Truncate(end))
	}
	t.count(e)
	return nil
}

// List returns the entries, oldest first.
func (t *Trash) List() []Entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []Entry
	for _, id := range t.order {
		if e, ok := t.kept[id]; ok {
			out = append(out, e)
		}
	}
	return out
}

// Read lists the trash in a directory, oldest entry first, also while a session
// uses it. A directory without a manifest is empty.
func Read(dir string) ([]Entry, error) {
	f, err := os.Open(dir + "/" + manifestName)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("trash: %w", err)
	}
	defer f.Close()
	t := &Trash{kept: map[string]Entry{}}
	if _, err := eachLine(f, func(e Entry) { t.count(e) }); err != nil {
		return nil, fmt.Errorf("trash %s: %w", f.Name(), err)
	}
	return t.List(), nil
}

// Save saves the file called name in dir, or dir itself if name is empty, and
// returns the entry's ID. Call it before the file is changed or removed. e has
// the path, the operation and the rule. With link the file is only removed, so
// a hard link may replace a copy.
func (t *Trash) Save(dir int, name string, link bool, e Entry) (string, error) {
	flags := unix.AT_SYMLINK_NOFOLLOW
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, flags); err != nil {
		return "", err
	}
	e.Time, e.Session, e.Mode, e.UID, e.GID, e.Type = time.Now(), t.session, st.Mode&0o7777, st.Uid, st.Gid, beneath.TypeOther
	e.Mtime = time.Unix(st.Mtim.Unix())
	t.mu.Lock()
	defer t.mu.Unlock()
	e.ID = fmt.Sprintf("%08d", t.next)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		e.Type, e.Size = beneath.TypeFile, st.Size
	case unix.S_IFDIR:
		e.Type = beneath.TypeDir
	case unix.S_IFLNK:
		e.Type = beneath.TypeSymlink
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(dir, name, buf)
		if err != nil {
			return "", err
		}
		e.Target = buf[:n]
	}
	if e.Type == beneath.TypeFile && st.Blocks*512 < st.Size {
		var err error
		if e.Holes, err = holesIn(dir, name, st.Size); err != nil {
			return "", err
		}
	}
	if len(t.kept) >= t.limits.Entries || t.bytes+e.Room() > t.limits.Bytes {
		return "", ErrFull
	}
	if e.Type == beneath.TypeFile {
		var err error
		if e.Linked, err = t.save(dir, name, e.ID, link && name != ""); err != nil {
			return "", err
		}
	}
	if err := t.write(e); err != nil {
		_ = unix.Unlinkat(t.dir, e.ID, 0) // the caller gets the manifest's error
		return "", err
	}
	return e.ID, nil
}

// holesIn returns how many bytes of a file are holes.
func holesIn(dir int, name string, size int64) (int64, error) {
	f, err := beneath.OpenFile(dir, name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	data, err := beneath.DataBytes(f, size)
	return size - data, err
}

// save links or copies a file into the trash.
func (t *Trash) save(dir int, name, id string, mayLink bool) (linked bool, err error) {
	if mayLink {
		err := unix.Linkat(dir, name, t.dir, id, 0)
		if err == nil || !errors.Is(err, unix.EXDEV) && !errors.Is(err, unix.EMLINK) {
			return err == nil, err
		}
	}
	from, err := beneath.OpenFile(dir, name)
	if err != nil {
		return false, err
	}
	defer from.Close()
	to, err := unix.Openat(t.dir, id, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return false, err
	}
	out := os.NewFile(uintptr(to), id)
	if err := errors.Join(beneath.CopyContent(out, from), out.Close()); err != nil {
		_ = unix.Unlinkat(t.dir, id, 0) // the caller gets the copy's error
		return false, err
	}
	return false, nil
}

// Find returns one entry.
func (t *Trash) Find(id string) (Entry, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, ok := t.kept[id]
	if !ok {
		return e, fmt.Errorf("the trash has no entry %q", id)
	}
	return e, nil
}

// Remove removes an entry and records why: restored, purged or failed.
func (t *Trash) Remove(id, why string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.kept[id]; !ok {
		return fmt.Errorf("the trash has no entry %q", id)
	}
	if err := t.write(Entry{ID: id, Time: time.Now(), Removed: why}); err != nil {
		return err
	}
	if err := unix.Unlinkat(t.dir, id, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// Restore creates the file of an entry again with content, mode, owner and
// time. An existing name is an error unless force is set. A directory is never
// replaced. The entry stays.
func (t *Trash) Restore(e Entry, dir int, name string, force bool) error {
	a := beneath.Attributes{Mode: e.Mode, UID: e.UID, GID: e.GID, Mtime: unix.NsecToTimespec(e.Mtime.UnixNano())}
	switch e.Type {
	case beneath.TypeDir:
		return restoreDir(dir, name, a, force)
	case beneath.TypeSymlink:
		return beneath.CreateLink(dir, name, e.Target, a, force)
	case beneath.TypeFile:
		return t.restoreFile(e, a, dir, name, force)
	}
	return errors.New("only files, directories and symbolic links are restored")
}

// restoreDir creates a directory. With force it sets the attributes of an
// existing one.
func restoreDir(dir int, name string, a beneath.Attributes, force bool) error {
	made, err := beneath.MakeDir(dir, name)
	if force && errors.Is(err, unix.EEXIST) {
		if made, err = beneath.OpenEntry(dir, name); err == nil && !made.IsDir() {
			made.Close()
			err = unix.EEXIST
		}
	}
	if err != nil {
		return err
	}
	defer made.Close()
	return made.Set(a)
}

// restoreFile restores a hard link if the trash has one, else a copy.
func (t *Trash) restoreFile(e Entry, a beneath.Attributes, dir int, name string, force bool) error {
	if e.Linked {
		temp := beneath.TempName()
		err := unix.Linkat(t.dir, e.ID, dir, temp, 0)
		if err == nil {
			if err = beneath.Rename(dir, temp, name, force); err != nil {
				_ = unix.Unlinkat(dir, temp, 0) // the caller gets the first error
			}
		}
		if !errors.Is(err, unix.EXDEV) {
			return err
		}
	}
	from, err := beneath.OpenFile(t.dir, e.ID)
	if err != nil {
		return err
	}
	defer from.Close()
	_, err = beneath.CreateFile(dir, name, a, force, func(to *os.File) error { return beneath.CopyContent(to, from) })
	return err
}
