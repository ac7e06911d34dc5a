// Package tarfs packs and unpacks a tree of files beneath an [os.Root].
//
// The stream is an ordinary tar archive. Its last entry is a manifest with the SHA-256
// of every file, so a truncated or altered stream is detected. An archive contains
// only regular files, directories and symbolic links that stay beneath the root. It
// never contains owners, devices, hard links or special mode bits. Both ends apply the
// same limits, so neither has to trust the other.
package tarfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"agentsh/internal/wire"
)

// manifestName is the name of the last entry of a stream.
const manifestName = ".agentsh-manifest.json"

// The entry types of a manifest.
const (
	typeFile    = "file"
	typeDir     = "dir"
	typeSymlink = "symlink"
)

// permBits are the mode bits that an archive preserves. It drops set-user-id,
// set-group-id, sticky and write permission for everybody.
const permBits fs.FileMode = 0o775

// copyBuffer is the size, in bytes, of the buffer for copying the content of a file.
const copyBuffer = 256 << 10

// Limits bound one archive. A zero field means the default.
type Limits struct {
	Files     int   // entries of any kind; default 300,000
	Bytes     int64 // sum of the content of all files; default 16 GiB
	FileBytes int64 // content of one file; default Bytes
	Depth     int   // components of one path; default 64
	NameBytes int   // length of one path; default 4096
	AllNames  int   // sum of all paths, targets and names of a manifest; default 256 MiB
}

// withDefaults returns l with every zero field replaced by its default.
func (l Limits) withDefaults() Limits {
	d := Limits{Files: 300_000, Bytes: 16 << 30, Depth: 64, NameBytes: 4096, AllNames: 256 << 20}
	if l.Files > 0 {
		d.Files = l.Files
	}
	if l.Bytes > 0 {
		d.Bytes = l.Bytes
	}
	d.FileBytes = d.Bytes
	if l.FileBytes > 0 {
		d.FileBytes = l.FileBytes
	}
	if l.Depth > 0 {
		d.Depth = l.Depth
	}
	if l.NameBytes > 0 {
		d.NameBytes = l.NameBytes
	}
	if l.AllNames > 0 {
		d.AllNames = l.AllNames
	}
	return d
}

// manifestBytes bounds the encoded manifest. The bound follows from the other limits
// and is at most 256 MiB.
func (l Limits) manifestBytes() int64 {
	return min(256<<20, int64(l.Files)*int64(2*l.NameBytes+256)+4096)
}

// ErrLimit is wrapped by every error about an exceeded limit.
var ErrLimit = errors.New("archive limit exceeded")

// ErrRefused is wrapped by every error about an entry that must not be unpacked.
var ErrRefused = errors.New("archive entry refused")

func refuse(name, format string, args ...any) error {
	return fmt.Errorf("%q: %s: %w", name, fmt.Sprintf(format, args...), ErrRefused)
}

// tally counts entries and bytes against the limits.
type tally struct {
	limits Limits
	files  int
	bytes  int64
	names  int // bytes
}

// name counts a name that is kept.
func (t *tally) name(name string) error {
	t.names += len(name)
	if t.names > t.limits.AllNames {
		return fmt.Errorf("%.64q... brings the names of the archive to %d bytes, at most %d: %w", name, t.names, t.limits.AllNames, ErrLimit)
	}
	return nil
}

// entry counts one entry of size bytes.
func (t *tally) entry(name string, size int64) error {
	if err := t.name(name); err != nil {
		return err
	}
	t.files++
	if t.files > t.limits.Files {
		return fmt.Errorf("%q is entry %d of at most %d: %w", name, t.files, t.limits.Files, ErrLimit)
	}
	if size < 0 || size > t.limits.FileBytes {
		return fmt.Errorf("%q has %d bytes, at most %d: %w", name, size, t.limits.FileBytes, ErrLimit)
	}
	t.bytes += size
	if t.bytes > t.limits.Bytes {
		return fmt.Errorf("%q brings the archive to %d bytes, at most %d: %w", name, t.bytes, t.limits.Bytes, ErrLimit)
	}
	return nil
}

// checkName refuses every name that is not a clean relative path beneath the root.
func (t *tally) checkName(name string) error {
	switch {
	case len(name) > t.limits.NameBytes:
		return fmt.Errorf("%.64q... is a name of %d bytes, at most %d: %w", name, len(name), t.limits.NameBytes, ErrLimit)
	case strings.IndexByte(name, 0) >= 0:
		return refuse(name, "name holds a NUL")
	case !wire.IsNamePath(name) || name == ".":
		return refuse(name, "name is not a clean relative path")
	case strings.Count(name, "/") >= t.limits.Depth:
		return fmt.Errorf("%.64q... is deeper than %d directories: %w", name, t.limits.Depth, ErrLimit)
	}
	for part := range strings.SplitSeq(name, "/") {
		if len(part) > 255 {
			return fmt.Errorf("%.64q...: a component of %d bytes, at most 255: %w", name, len(part), ErrLimit)
		}
	}
	return nil
}

// checkTarget refuses the target of a symbolic link unless it stays beneath the root.
// It accepts dot-dot only at the front. The directory of a link is a real one, so
// leading dot-dots resolve as written. A dot-dot behind a name could leave the target
// of another link.
func (t *tally) checkTarget(name, target string) error {
	switch {
	case target == "" || len(target) > t.limits.NameBytes:
		return refuse(name, "link target of %d bytes", len(target))
	case strings.IndexByte(target, 0) >= 0:
		return refuse(name, "link target holds a NUL")
	case path.IsAbs(target):
		return refuse(name, "link target %q is absolute", target)
	}
	room, named := strings.Count(name, "/"), false
	for part := range strings.SplitSeq(target, "/") {
		switch part {
		case "", ".":
		case "..":
			room--
			if named || room < 0 {
				return refuse(name, "link target %q leaves the tree", target)
			}
		default:
			named = true
		}
	}
	return nil
}

// IsGitDir reports whether a path component names git's own directory on any common
// file system. These names are .git in any case, .git with trailing dots or spaces,
// and its short form git~1.
func IsGitDir(component string) bool {
	c := strings.ToLower(strings.Map(dropIgnorable, component))
	c = strings.TrimRight(c, ". ")
	return c == ".git" || strings.HasPrefix(c, "git~") || strings.HasPrefix(c, ".git:")
}

// dropIgnorable removes the characters that HFS+ ignores when it compares names.
func dropIgnorable(r rune) rune {
	switch {
	case r >= 0x200c && r <= 0x200f, r >= 0x202a && r <= 0x202e, r >= 0x206a && r <= 0x206f, r == 0xfeff:
		return -1
	}
	return r
}

// hasGitDir reports whether any component of name is git's own directory.
func hasGitDir(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if IsGitDir(part) {
			return true
		}
	}
	return false
}

// release closes a directory. Errors are ignored: the directory was only used to look
// up names or to write beneath it.
func release(root *os.Root) { _ = root.Close() }
