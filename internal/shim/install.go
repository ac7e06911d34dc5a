package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Install replaces the shells of a root directory by the program. It can be run
// again at any time: installed shims stay, a shell that a package has replaced
// since is set aside anew, and another program replaces the present one. session is
// [Own], [Shared] or, to leave what is there, empty.
func Install(rootDir, self, session string) ([]State, error) {
	root, err := os.OpenRoot(rootDir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }() // a directory
	r, err := read(root)
	if err != nil {
		return nil, err
	}
	if err := root.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make %s: %w", dir, err)
	}
	if err := root.Chmod(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make %s: %w", dir, err)
	}
	found, err := find(root)
	if err != nil {
		return nil, err
	}
	fresh, err := r.missing(root, found)
	if err != nil {
		return nil, err
	}
	if err := r.plan(fresh, self); err != nil {
		return nil, err
	}
	if session != "" {
		r.Session = session
	}
	if err := r.write(root); err != nil { // first: it distinguishes a shim of any age from a shell
		return nil, err
	}
	if err := installProgram(root, self); err != nil {
		return nil, err
	}
	for _, e := range r.Entries {
		if err := e.install(root, slices.ContainsFunc(fresh, func(x Entry) bool { return x.Path == e.Path })); err != nil {
			return nil, fmt.Errorf("replace /%s: %w", e.Path, err)
		}
	}
	return Status(rootDir)
}

// plan adds the program and the shells that it will replace to the manifest.
func (r *record) plan(fresh []Entry, self string) error {
	f, err := os.Open(self)
	if err != nil {
		return err
	}
	defer f.Close()
	sum, err := digestOf(f)
	if err != nil {
		return err
	}
	r.Version = 1
	r.Programs = append(slices.DeleteFunc(r.Programs, func(p string) bool { return p == sum }), sum)
	for _, e := range fresh {
		if slices.Contains(r.Programs, e.Digest) {
			return fmt.Errorf("/%s is agentsh already, and no manifest tells what it stands for", e.Path)
		}
		r.Entries = append(slices.DeleteFunc(r.Entries, func(x Entry) bool { return x.Path == e.Path }), e)
	}
	return nil
}

// find lists the shells of a root, each once, without links in their directory.
func find(root *os.Root) ([]string, error) {
	var out []string
	for _, d := range dirs {
		real, err := resolve(root, d)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			at := path.Join(real, name)
			_, err := root.Lstat(at)
			if err == nil && !slices.Contains(out, at) {
				out = append(out, at)
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
		}
	}
	if len(out) == 0 {
		return nil, errors.New("no shell to replace in /bin and /usr/bin")
	}
	return out, nil
}

// missing describes those shells that are not replaced yet.
func (r record) missing(root *os.Root, found []string) ([]Entry, error) {
	var out []Entry
	for _, name := range found {
		inPlace, err := isShim(root, r, name)
		if err != nil {
			return nil, err
		}
		if inPlace && slices.ContainsFunc(r.Entries, func(e Entry) bool { return e.Path == name }) {
			continue
		}
		e, err := describe(root, name)
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	return out, nil
}

// describe looks at a shell before it is replaced.
func describe(root *os.Root, name string) (Entry, error) {
	info, err := root.Lstat(name)
	if err != nil {
		return Entry{}, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return Entry{}, fmt.Errorf("/%s: no owner", name)
	}
	e := Entry{Path: name, Mode: info.Mode(), UID: int(st.Uid), GID: int(st.Gid)}
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		if e.Link, err = root.Readlink(name); err != nil {
			return e, err
		}
		_, err = resolve(root, name)
	case info.Mode().IsRegular():
		e.Saved = strings.ReplaceAll(name, "/", "-")
		e.Digest, err = digest(root, name)
	default:
		err = fmt.Errorf("/%s is no file", name)
	}
	return e, err
}

// installProgram copies the program into the root.
func installProgram(root *os.Root, self string) error {
	f, err := os.Open(self)
	if err != nil {
		return err
	}
	defer f.Close()
	next := program + ".new"
	if err := write(root, next, f, 0o755); err != nil {
		return err
	}
	return root.Rename(next, program)
}

// write makes a file with all of its content on the disk.
func write(root *os.Root, name string, content io.Reader, mode fs.FileMode) error {
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
}

func (r record) write(root *os.Root) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := write(root, manifest+".new", strings.NewReader(string(data)+"\n"), 0o644); err != nil {
		return err
	}
	return errors.Join(root.Rename(manifest+".new", manifest), syncDir(root, dir))
}

func syncDir(root *os.Root, name string) error {
	d, err := root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// install renames the original and installs the program under its name.
func (e Entry) install(root *os.Root, fresh bool) error {
	if fresh && e.Saved != "" {
		if err := e.swap(root, e.Path, path.Join(dir, e.Saved)); err != nil {
			return err
		}
	}
	own := Entry{Mode: 0o755, UID: os.Geteuid(), GID: os.Getegid()}
	return own.swap(root, program, e.Path)
}

// swap makes to the same file as from, in one step: by a link, or where file
// systems differ by a copy with the entry's mode and owner.
func (e Entry) swap(root *os.Root, from, to string) error {
	next := path.Join(path.Dir(to), ".agentsh-shim.new")
	if err := root.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err := root.Link(from, next)
	if errors.Is(err, syscall.EXDEV) || errors.Is(err, syscall.EMLINK) {
		err = e.copyFile(root, from, next)
	}
	if err != nil {
		return err
	}
	if err := root.Rename(next, to); err != nil {
		return err
	}
	// Two names of one file: rename(2) does nothing and leaves both.
	if err := root.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return syncDir(root, path.Dir(to))
}

func (e Entry) copyFile(root *os.Root, from, to string) error {
	f, err := root.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := write(root, to, f, 0o600); err != nil {
		return err
	}
	// The owner first: changing it takes setuid bits away.
	return errors.Join(root.Lchown(to, e.UID, e.GID), root.Chmod(to, e.Mode), root.Chtimes(to, time.Time{}, info.ModTime()))
}

// Uninstall puts the originals back and removes everything else. A shell that a
// package has replaced since stays.
func Uninstall(rootDir string) error {
	root, err := os.OpenRoot(rootDir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // a directory
	r, err := read(root)
	if err != nil {
		return err
	}
	for _, e := range r.Entries {
		inPlace, err := isShim(root, r, e.Path)
		if err == nil && inPlace {
			err = e.restore(root)
		}
		if err != nil {
			return fmt.Errorf("restore /%s: %w", e.Path, err)
		}
	}
	return errors.Join(root.RemoveAll(dir), removeEmpty(root, path.Dir(dir)))
}

// restore puts one original back in one step.
func (e Entry) restore(root *os.Root) error {
	if e.Saved != "" {
		return e.swap(root, path.Join(dir, e.Saved), e.Path)
	}
	next := path.Join(path.Dir(e.Path), ".agentsh-shim.new")
	if err := root.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return errors.Join(root.Symlink(e.Link, next), root.Lchown(next, e.UID, e.GID), root.Rename(next, e.Path), syncDir(root, path.Dir(e.Path)))
}

// removeEmpty removes a directory that nothing else is in.
func removeEmpty(root *os.Root, name string) error {
	err := root.Remove(name)
	if errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Status reports the file at the path of every shell of a root directory, and
// whether the originals are unchanged.
func Status(rootDir string) ([]State, error) {
	root, err := os.OpenRoot(rootDir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }() // a directory
	r, err := read(root)
	if err != nil {
		return nil, err
	}
	found, err := find(root)
	if err != nil {
		return nil, err
	}
	for _, e := range r.Entries {
		if !slices.Contains(found, e.Path) {
			found = append(found, e.Path)
		}
	}
	var out []State
	for _, name := range found {
		i := slices.IndexFunc(r.Entries, func(e Entry) bool { return e.Path == name })
		s := State{Path: "/" + name, Text: "the shell itself"}
		if i >= 0 {
			s.Sound, s.Text = r.state(root, r.Entries[i])
		}
		out = append(out, s)
	}
	return out, nil
}

// state compares digests: of the shim and of the original.
func (r record) state(root *os.Root, e Entry) (sound bool, text string) {
	inPlace, err := isShim(root, r, e.Path)
	switch {
	case err != nil:
		return false, err.Error()
	case !inPlace:
		return false, "not the shim: installing was cut short, or something has replaced it since"
	}
	sum, err := digest(root, e.Path)
	if err != nil {
		return false, err.Error()
	}
	if sum != r.Programs[len(r.Programs)-1] {
		return false, "the shim of another build"
	}
	original, err := r.original(root, e)
	if err != nil {
		return false, "the shim, and its original is lost: " + err.Error()
	}
	if e.Saved == "" {
		return true, "the shim, for a link to " + e.Link + " (/" + original + ")"
	}
	info, err := root.Lstat(original)
	if err != nil {
		return false, err.Error()
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if sum, err = digest(root, original); err != nil {
		return false, err.Error()
	}
	if sum != e.Digest || info.Mode() != e.Mode || !ok || int(st.Uid) != e.UID || int(st.Gid) != e.GID {
		return false, "the shim, and its original /" + original + " has been changed"
	}
	return true, "the shim, for /" + original
}
