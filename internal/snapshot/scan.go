package snapshot

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"agentsh/internal/beneath"
	"golang.org/x/sys/unix"
)

// maxEntries limits the files of one checkpoint.
const maxEntries = 2_000_000

// maxNames limits the bytes of what a listing holds besides: paths, targets of
// links and attributes. A deep tree has more of them than names: each path
// repeats those above it.
const maxNames = 128 << 20

// maxReadings limits how often a file that changes meanwhile is read again.
const maxReadings = 5

// clockGranularity is how long after a change a second change may leave the
// times as they are, on filesystems with coarse clocks.
const clockGranularity = 2 * time.Second

// Entry is one file of a checkpoint.
type Entry struct {
	Path   []byte `json:"path"` // relative to the workspace; the root is ""
	Type   string `json:"type"`
	Mode   uint32 `json:"mode"`
	UID    uint32 `json:"uid"`
	GID    uint32 `json:"gid"`
	Mtime  int64  `json:"mtime"` // nanoseconds since 1970
	Size   int64  `json:"size,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
	Target []byte `json:"target,omitempty"`
	Link   []byte `json:"link,omitempty"` // the first path of the same file, in the order of the checkpoint

	// Xattrs of a file or directory, sorted; of a file with several names only at
	// the first.
	Xattrs []beneath.Xattr `json:"xattrs,omitempty"`

	// The attributes that show that a file was not changed since: see stat(2).
	Dev   uint64 `json:"dev"`
	Ino   uint64 `json:"ino"`
	Ctime int64  `json:"ctime"`
	Nlink uint64 `json:"nlink"`
}

func entryOf(rel string, st *unix.Stat_t) Entry {
	e := Entry{
		Path: []byte(rel), Mode: st.Mode & 0o7777, UID: st.Uid, GID: st.Gid, Mtime: st.Mtim.Nano(),
		Dev: st.Dev, Ino: st.Ino, Ctime: st.Ctim.Nano(), Nlink: uint64(st.Nlink), Type: beneath.TypeOther, //nolint:unconvert // 32 bits on arm64
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		e.Type, e.Size = beneath.TypeFile, st.Size
	case unix.S_IFDIR:
		e.Type = beneath.TypeDir
	case unix.S_IFLNK:
		e.Type = beneath.TypeSymlink
	case unix.S_IFIFO:
		e.Type = beneath.TypeFIFO
	case unix.S_IFSOCK:
		e.Type = beneath.TypeSocket
	}
	return e
}

// untouched reports whether e is the file that was listed as old at a time,
// without a change since.
func (e *Entry) untouched(old *Entry, at time.Time) bool {
	return old.Type == e.Type && old.Dev == e.Dev && old.Ino == e.Ino && old.Size == e.Size && old.Mtime == e.Mtime && old.Ctime == e.Ctime &&
		e.Ctime < at.Add(-clockGranularity).UnixNano()
}

func (e *Entry) inode() beneath.Inode { return beneath.Inode{Dev: e.Dev, Ino: e.Ino} }

func (e *Entry) attributes() beneath.Attributes {
	return beneath.Attributes{Mode: e.Mode, UID: e.UID, GID: e.GID, Mtime: unix.NsecToTimespec(e.Mtime)}
}

// restored reports whether a rollback can create such a file. A socket belongs
// to its listener, a device to the machine.
func (e *Entry) restored() bool { return e.Type != beneath.TypeSocket && e.Type != beneath.TypeOther }

// sameType reports whether two entries have one type. Format 0 has a single
// type for all special files.
func (e *Entry) sameType(other *Entry) bool {
	special := func(t string) bool { return t == beneath.TypeFIFO || t == beneath.TypeSocket || t == beneath.TypeOther }
	return e.Type == other.Type || (e.Type == beneath.TypeOther || other.Type == beneath.TypeOther) && special(e.Type) && special(other.Type)
}

// listing is the list of a workspace's files at one time.
type listing struct {
	at      time.Time // before the first look
	format  int       // of the checkpoint; see [Checkpoint]
	xattrs  bool      // entries have theirs; those of old checkpoints do not
	entries []Entry   // sorted by path: a directory before what is in it
}

func (l *listing) byPath() map[string]*Entry {
	out := make(map[string]*Entry, len(l.entries))
	for i := range l.entries {
		out[string(l.entries[i].Path)] = &l.entries[i]
	}
	return out
}

// digests are those of all files.
func (l *listing) digests() map[string]bool {
	out := map[string]bool{}
	for i := range l.entries {
		if sum := l.entries[i].SHA256; sum != "" {
			out[sum] = true
		}
	}
	return out
}

// look sets the digest of a regular file. dated is true if the times of the
// file show every change; writes through mappings count once it was flushed.
type look func(dir int, name string, e *Entry, dated bool) error

// scan lists every file of a workspace. It leaves out files that vanish
// meanwhile.
func scan(root *os.File, content look) (*listing, error) {
	l := &listing{at: time.Now(), format: currentFormat, xattrs: true}
	s := scanner{listing: l, content: content, links: map[beneath.Inode]int{}}
	fd, err := beneath.OpenDir(root, "", false)
	if err != nil {
		return nil, err
	}
	defer beneath.CloseFD(fd)
	var st unix.Stat_t
	if err := unix.Fstatat(fd, "", &st, unix.AT_EMPTY_PATH); err != nil {
		return nil, err
	}
	s.dev = st.Dev
	if s.dated, err = datesMappedWrites(fd); err != nil {
		return nil, err
	}
	l.entries = append(l.entries, entryOf("", &st))
	if err := s.directory(fd, ""); err != nil {
		return nil, err
	}
	slices.SortFunc(l.entries, func(a, b Entry) int { return slices.Compare(a.Path, b.Path) })
	return l, nil
}

// datesMappedWrites reports whether a filesystem updates a file's times at the
// first write through a shared mapping after a flush. Disk filesystems do,
// because a flush makes the pages read-only. tmpfs does not. Unknown
// filesystems and overlays count as such that do not.
func datesMappedWrites(fd int) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return false, fmt.Errorf("type of the filesystem: %w", err)
	}
	switch int64(st.Type) { //nolint:unconvert // 32 bits on some machines
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC:
		return true, nil
	}
	return false, nil
}

// flush writes the pages of a file to the disk, which makes them read-only for
// mappings. It does so twice, because the first call may only begin to write a
// compressed file. See sync_file_range(2).
func flush(f *os.File) error {
	const all = unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER
	for range 2 {
		if err := unix.SyncFileRange(int(f.Fd()), 0, 0, all); err != nil {
			return fmt.Errorf("write to the disk: %w", err)
		}
	}
	return nil
}

type scanner struct {
	*listing
	content look
	links   map[beneath.Inode]int // entries of files with several names
	dev     uint64                // of the root
	dated   bool                  // its filesystem dates mappings
	held    int                   // bytes of names, see maxNames
}

// add adds an entry.
func (s *scanner) add(e Entry) error {
	if len(s.entries) >= maxEntries {
		return fmt.Errorf("the workspace holds more than %d files", maxEntries)
	}
	s.held += len(e.Path) + len(e.Target)
	for _, x := range e.Xattrs {
		s.held += len(x.Name) + len(x.Value)
	}
	if s.held > maxNames {
		return fmt.Errorf("%.60s: the names of the files have more than %d MiB: remove deep directories, or long names", e.Path, maxNames>>20)
	}
	s.entries = append(s.entries, e)
	return nil
}

func (s *scanner) directory(fd int, rel string) error {
	names, err := namesIn(fd)
	if err != nil {
		return fmt.Errorf("%s: %w", cmp.Or(rel, "."), err)
	}
	for _, name := range names {
		if err := s.entry(fd, name, join(rel, name)); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

func (s *scanner) entry(dir int, name, rel string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("%s: %w", rel, err)
	}
	e := entryOf(rel, &st)
	switch e.Type {
	case beneath.TypeDir:
		fd, err := beneath.OpenChild(dir, name)
		if err != nil {
			return fmt.Errorf("%s: %w", rel, err)
		}
		defer beneath.CloseFD(fd)
		if e.Xattrs, err = beneath.Xattrs(fd); err != nil {
			return fmt.Errorf("%s: %w", rel, err)
		}
		if err := s.add(e); err != nil {
			return err
		}
		return s.directory(fd, rel)
	case beneath.TypeSymlink:
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(dir, name, buf)
		if err != nil {
			return fmt.Errorf("%s: %w", rel, err)
		}
		e.Target = bytes.Clone(buf[:n])
	case beneath.TypeFile:
		id := e.inode()
		if first, seen := s.links[id]; seen && e.Nlink > 1 {
			e.SHA256, e.Link = s.entries[first].SHA256, s.entries[first].Path
			break
		}
		if err := s.content(dir, name, &e, s.dated && e.Dev == s.dev); err != nil {
			return fmt.Errorf("%s: %w", rel, err)
		}
		if e.Nlink > 1 {
			s.links[id] = len(s.entries)
		}
	}
	return s.add(e)
}

// namesIn lists a directory, sorted. So the first name of a file with several
// hard links is the same in each listing.
func namesIn(fd int) ([]string, error) {
	open, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(open), ".")
	defer f.Close()
	names, err := f.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}

func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// reading says how to read a file that may change meanwhile.
type reading struct {
	digest func(*os.File) (sum string, err error)
	flush  bool   // see flush
	twice  bool   // the times do not tell of every change: two readings must be alike
	first  string // digest of an earlier reading of the file; empty: there was none
	once   bool   // a file that changes meanwhile is not read again
}

// errBusy is the error of a file that changes during each reading.
var errBusy = errors.New("it is written all the time: nothing whole can be kept of it")

// readStable reads a file until it did not change during the reading, and
// stores the attributes of that moment.
func readStable(dir int, name string, e *Entry, r reading) error {
	f, err := beneath.OpenFile(dir, name)
	if err != nil {
		return err
	}
	defer f.Close()
	if r.flush {
		if err := flush(f); err != nil {
			return err
		}
	}
	for range maxReadings {
		var before, after unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &before); err != nil {
			return err
		}
		if before.Mode&unix.S_IFMT != unix.S_IFREG {
			return unix.ENOENT // it was replaced
		}
		sum, err := r.digest(f)
		if err != nil {
			return err
		}
		if err := unix.Fstat(int(f.Fd()), &after); err != nil {
			return err
		}
		xattrs, err := beneath.Xattrs(int(f.Fd()))
		if err != nil {
			return err
		}
		again := r.first == sum
		r.first = sum
		if before.Size == after.Size && before.Mtim == after.Mtim && before.Ctim == after.Ctim && (again || !r.twice) {
			path := e.Path
			*e = entryOf("", &after)
			e.Path, e.SHA256, e.Xattrs = path, sum, xattrs
			return nil
		}
		if r.once {
			break
		}
	}
	return errBusy
}

// unlessBusy leaves the digest of a file out that changed during each reading.
func unlessBusy(err error) error {
	if errors.Is(err, errBusy) {
		return nil
	}
	return err
}
