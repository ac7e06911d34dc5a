package snapshot

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/beneath"
	"agentsh/internal/statedir"
	"agentsh/internal/wire"
)

// Checkpoint is the state of a workspace at one moment.
type Checkpoint struct {
	ID        string    `json:"id"`
	Name      string    `json:"name,omitempty"`
	Time      time.Time `json:"time"`
	Workspace string    `json:"workspace"`
	Files     int       `json:"files"`
	Bytes     int64     `json:"bytes"`  // of all files
	Stored    int64     `json:"stored"` // of those whose content no earlier checkpoint had
	// LeftOut lists sockets and devices, which a rollback cannot create.
	LeftOut wire.Names `json:"left_out,omitempty"`
	// Xattrs is true if entries have their extended attributes.
	Xattrs bool `json:"xattrs,omitempty"`
	// Format is 1 if digests are those of blocks and the workspace was flushed
	// first: see content and flush. In format 0 a digest covers all content, zeros
	// too.
	Format int `json:"format,omitempty"`
	// Unfinished is true if a rollback to it was interrupted.
	Unfinished bool `json:"unfinished,omitempty"`
}

// Checkpoints are the checkpoints of one workspace. Content is stored once,
// under its digest. A lock admits one process at a time.
type Checkpoints struct {
	dir       string
	workspace string
	root      *os.File
	lock      *os.File
	added     map[string]int64 // bytes of content that the checkpoint in the making has stored
}

// currentFormat is the [Checkpoint.Format] of new checkpoints.
const currentFormat = 1

const (
	objectsName  = "objects"
	rollbackName = "rollback.json"
	manifestEnd  = ".jsonl"
)

// Checkpoints opens the checkpoints of a workspace and locks them. The caller
// closes them.
func (s *Store) Checkpoints(workspace string) (*Checkpoints, error) {
	sum := sha256.Sum256([]byte(workspace))
	c := &Checkpoints{dir: filepath.Join(s.dir, "checkpoints", hex.EncodeToString(sum[:8])), workspace: workspace}
	if err := os.MkdirAll(filepath.Join(c.dir, objectsName), 0o700); err != nil {
		return nil, fmt.Errorf("checkpoints: %w", err)
	}
	var err error
	if c.lock, err = statedir.TakeLock(filepath.Join(c.dir, lockName), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("checkpoints: %w", err)
	}
	if c.root, err = beneath.OpenRoot(workspace); err != nil {
		return nil, errors.Join(err, c.lock.Close())
	}
	return c, c.sweep()
}

// Close releases the lock.
func (c *Checkpoints) Close() error { return errors.Join(c.root.Close(), c.lock.Close()) }

// sweep removes temporary files that a killed process left.
func (c *Checkpoints) sweep() error {
	for _, dir := range []string{c.dir, filepath.Join(c.dir, objectsName)} {
		left, err := filepath.Glob(filepath.Join(dir, beneath.TempPrefix+"*"))
		if err != nil {
			return err
		}
		for _, name := range left {
			if err := os.Remove(name); err != nil {
				return fmt.Errorf("checkpoints: %w", err)
			}
		}
	}
	return nil
}

// List returns every checkpoint, oldest first.
func (c *Checkpoints) List() ([]Checkpoint, error) {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return nil, fmt.Errorf("checkpoints: %w", err)
	}
	unfinished, err := c.unfinished()
	if err != nil {
		return nil, err
	}
	out := []Checkpoint{}
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), manifestEnd)
		if !ok || strings.HasPrefix(id, ".") {
			continue
		}
		one, _, err := c.read(id, false)
		if err != nil {
			return nil, err
		}
		one.Unfinished = unfinished == id
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b Checkpoint) int { return number(a.ID) - number(b.ID) })
	return out, nil
}

func number(id string) int {
	n, _ := strconv.Atoi(id) // ids are made by next
	return n
}

// absent is the error about a checkpoint that does not exist. It is a
// fs.ErrNotExist.
type absent string

func (a absent) Error() string        { return fmt.Sprintf("the workspace has no checkpoint %q", string(a)) }
func (a absent) Is(target error) bool { return target == fs.ErrNotExist }

// read reads one checkpoint, and its entries if entries is set. The first line
// of the file is the checkpoint, each other line an entry.
func (c *Checkpoints) read(id string, entries bool) (Checkpoint, *listing, error) {
	var one Checkpoint
	if _, err := strconv.ParseUint(id, 10, 31); err != nil {
		return one, nil, absent(id)
	}
	f, err := os.Open(filepath.Join(c.dir, id+manifestEnd))
	if errors.Is(err, fs.ErrNotExist) {
		return one, nil, absent(id)
	}
	if err != nil {
		return one, nil, fmt.Errorf("checkpoint %s: %w", id, err)
	}
	defer f.Close()
	lines := json.NewDecoder(bufio.NewReader(f))
	if err := lines.Decode(&one); err != nil {
		return one, nil, fmt.Errorf("checkpoint %s: %w", id, err)
	}
	if !entries {
		return one, nil, nil
	}
	l := &listing{at: one.Time, format: one.Format, xattrs: one.Xattrs}
	for {
		var e Entry
		err := lines.Decode(&e)
		if errors.Is(err, io.EOF) && len(l.entries) == one.Files {
			return one, l, nil
		}
		if err != nil {
			return one, nil, fmt.Errorf("checkpoint %s: entry %d of %d: %w", id, len(l.entries), one.Files, err)
		}
		l.entries = append(l.entries, e)
	}
}

// maxName limits the name of a checkpoint, in bytes.
const maxName = 1000

// Create creates a checkpoint. It calls freeze after it has stored the content
// of most files. A checkpoint that fails stores nothing.
func (c *Checkpoints) Create(name string, freeze func() (*Freeze, error)) (one Checkpoint, err error) {
	if len(name) > maxName {
		return one, fmt.Errorf("the name of a checkpoint has %d bytes: at most %d", len(name), maxName)
	}
	if id, err := c.unfinished(); err != nil || id != "" {
		return one, errors.Join(err, c.unfinishedError(id))
	}
	list, err := c.List()
	if err != nil {
		return one, err
	}
	c.added = map[string]int64{}
	needed := &listing{}
	defer func() { err = errors.Join(err, c.dropAdded(needed)) }()
	known := &listing{}
	next := 1
	if len(list) > 0 {
		newest := list[len(list)-1].ID
		next = number(newest) + 1
		if _, known, err = c.read(newest, true); err != nil {
			return one, err
		}
	}
	err = syncAt(int(c.root.Fd())) // all at once: flush finds little to do
	if err != nil {
		return one, fmt.Errorf("checkpoint: %w", err)
	}
	first, err := c.store(known, false)
	if err != nil {
		return one, fmt.Errorf("checkpoint: %w", err)
	}
	frozen, err := c.freeze(freeze)
	if err != nil {
		return one, err
	}
	second, err := c.store(first, true)
	err = errors.Join(err, frozen.check())
	if released := frozen.Release(nil); err == nil {
		err = released
	}
	if err != nil {
		return one, fmt.Errorf("checkpoint: %w", err)
	}
	one = Checkpoint{
		ID:        strconv.Itoa(next),
		Name:      name,
		Time:      second.at,
		Workspace: c.workspace,
		Files:     len(second.entries),
		Xattrs:    true,
		Format:    currentFormat,
	}
	for i := range second.entries {
		if e := &second.entries[i]; len(e.Link) == 0 {
			one.Bytes += e.Size
		}
		if e := &second.entries[i]; !e.restored() {
			one.LeftOut = append(one.LeftOut, string(e.Path))
		}
	}
	for sum := range second.digests() {
		one.Stored += c.added[sum]
	}
	if err := c.write(one, second); err != nil {
		return one, fmt.Errorf("checkpoint: %w", err)
	}
	needed = second
	return one, c.syncDir()
}

// dropAdded removes content that was stored for a checkpoint which does not need it: the
// checkpoint failed, or a file changed while it was read.
func (c *Checkpoints) dropAdded(by *listing) error {
	needed := by.digests()
	for sum := range c.added {
		if needed[sum] {
			continue
		}
		if err := removeIfThere(c.object(sum)); err != nil {
			return fmt.Errorf("checkpoint: %w", err)
		}
	}
	c.added = nil
	return nil
}

// store stores the content of every file that changed since known. With whole
// it reads a file until two readings agree, where its times do not show every
// change. Without, a file that changes while it is read is left for later.
func (c *Checkpoints) store(known *listing, whole bool) (*listing, error) {
	old := known.byPath()
	read := func(dir int, name string, e *Entry, r reading) error {
		err := readStable(dir, name, e, r)
		if whole {
			return err
		}
		return unlessBusy(err)
	}
	return scan(c.root, func(dir int, name string, e *Entry, dated bool) error {
		r := reading{digest: c.add, flush: dated, twice: whole && !dated, once: !whole}
		was := old[string(e.Path)]
		if was == nil || known.format != currentFormat || was.SHA256 == "" || len(was.Link) > 0 || was.inode() != e.inode() {
			return read(dir, name, e, r)
		}
		if dated && e.untouched(was, known.at) {
			e.SHA256, e.Xattrs = was.SHA256, was.Xattrs
			return nil
		}
		if r.first = was.SHA256; !dated {
			r.digest = func(f *os.File) (string, error) { return c.addOther(f, was.SHA256) }
		}
		return read(dir, name, e, r)
	})
}

// addOther stores the content of a file unless it has the known digest.
func (c *Checkpoints) addOther(f *os.File, known string) (string, error) {
	if sum, err := digest(f); err != nil || sum == known {
		return sum, err
	}
	return c.add(f)
}

// object returns the path of stored content.
func (c *Checkpoints) object(sum string) string { return filepath.Join(c.dir, objectsName, sum) }

// add stores the content of a file, if it is new, and returns its digest.
func (c *Checkpoints) add(f *os.File) (sum string, err error) {
	temp, err := os.OpenFile(filepath.Join(c.dir, objectsName, beneath.TempName()), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, temp.Close(), removeIfThere(temp.Name())) }()
	var data int64
	if unix.IoctlFileClone(int(temp.Fd()), int(f.Fd())) == nil {
		sum, data, err = copyDigest(nil, temp)
	} else {
		sum, data, err = copyDigest(temp, f)
	}
	if err != nil {
		return "", err
	}
	if _, err := os.Lstat(c.object(sum)); err == nil {
		return sum, nil
	}
	if err := os.Rename(temp.Name(), c.object(sum)); err != nil {
		return "", err
	}
	c.added[sum] = data
	return sum, nil
}

func removeIfThere(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// write publishes a checkpoint after all its content is on the disk.
func (c *Checkpoints) write(one Checkpoint, l *listing) error {
	temp, err := os.OpenFile(filepath.Join(c.dir, beneath.TempName()), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(temp)
	lines := json.NewEncoder(w)
	err = lines.Encode(one)
	for i := 0; i < len(l.entries) && err == nil; i++ {
		err = lines.Encode(&l.entries[i])
	}
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = unix.Syncfs(int(temp.Fd())) // the objects too
	}
	if err = errors.Join(err, temp.Close()); err == nil {
		err = unix.Renameat2(unix.AT_FDCWD, temp.Name(), unix.AT_FDCWD, filepath.Join(c.dir, one.ID+manifestEnd), unix.RENAME_NOREPLACE)
	}
	if err != nil {
		return errors.Join(err, removeIfThere(temp.Name()))
	}
	return nil
}

func (c *Checkpoints) syncDir() error {
	dir, err := os.Open(c.dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// Delete removes checkpoints, and content that no other checkpoint needs.
func (c *Checkpoints) Delete(ids ...string) error {
	for _, id := range ids {
		if _, _, err := c.read(id, false); err != nil {
			return err
		}
	}
	if id, err := c.unfinished(); err != nil || slices.Contains(ids, id) {
		return errors.Join(err, c.unfinishedError(id))
	}
	for _, id := range ids {
		if err := os.Remove(filepath.Join(c.dir, id+manifestEnd)); err != nil {
			return fmt.Errorf("checkpoint %s: %w", id, err)
		}
	}
	if err := c.syncDir(); err != nil {
		return err
	}
	return c.collect()
}

// collect removes content that no checkpoint needs.
func (c *Checkpoints) collect() error {
	list, err := c.List()
	if err != nil {
		return err
	}
	needed := map[string]bool{}
	for _, one := range list {
		_, l, err := c.read(one.ID, true)
		if err != nil {
			return err
		}
		for i := range l.entries {
			needed[l.entries[i].SHA256] = true
		}
	}
	objects, err := os.ReadDir(filepath.Join(c.dir, objectsName))
	if err != nil {
		return err
	}
	for _, o := range objects {
		if !needed[o.Name()] {
			if err := os.Remove(c.object(o.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}
