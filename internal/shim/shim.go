// Package shim replaces the shells of a root directory by agentsh, and restores them.
//
// A platform that starts "sh -c ..." by itself then starts agentsh, which runs
// the shell that was there in a session. What is changed is listed in a manifest
// before it is changed, originals are linked aside before anything takes their
// place, and every change of a name is one rename(2): a process that is killed in
// between leaves a shell that works.
package shim

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// Paths below the root directory.
const (
	dir      = "usr/lib/agentsh/shells"
	manifest = dir + "/manifest.json"
	program  = dir + "/agentsh" // the program that the shims are links of
)

// Program is the file that the shims are links of, under a name that is no shell's.
const Program = "/" + program

// maxManifest bounds the manifest, in bytes.
const maxManifest = 1 << 20

// dirs and names are what is looked for.
var (
	dirs  = []string{"bin", "usr/bin"}
	names = []string{"sh", "bash"}
)

// Name reports whether a program was started as a shell: by the last part of its
// first argument, with the dash of a login shell, or by that of its own file.
func Name(argv0, executable string) bool {
	shells := []string{"sh", "bash", "dash", "ash", "rbash"}
	return slices.Contains(shells, strings.TrimPrefix(path.Base(argv0), "-")) || slices.Contains(shells, path.Base(executable))
}

// Entry is one shell that was replaced.
type Entry struct {
	Path   string      `json:"path"`            // below the root, without links
	Link   string      `json:"link,omitempty"`  // text of the symbolic link it was
	Saved  string      `json:"saved,omitempty"` // name of the file it was
	Digest string      `json:"sha256,omitempty"`
	Mode   fs.FileMode `json:"mode"`
	UID    int         `json:"uid"`
	GID    int         `json:"gid"`
}

// record is the manifest.
type record struct {
	Version  int      `json:"version"`
	Session  string   `json:"session,omitempty"` // [Own], [Shared]; empty: Own
	Programs []string `json:"programs_sha256"`   // all that were ever put in place, the last one last
	Entries  []Entry  `json:"entries"`
}

// State describes the file at the path of one shell.
type State struct {
	Path  string `json:"path"`
	Sound bool   `json:"sound"` // the shim is in place and its original is unharmed
	Text  string `json:"state"`
}

// Shell is a shell that the shim replaces.
type Shell struct {
	Path string // of the shim, below the root
	Real string // of the original, below the root
}

// SessionName is the name of the session that the shells of a user share.
const SessionName = "shim"

// Sessions in which shells run.
const (
	Own    = "own"    // each shell has a session of its own
	Shared = "shared" // the shells of one user have one session
)

// Session returns what the manifest of a root directory says: [Own] or [Shared].
func Session(rootDir string) (string, error) {
	root, err := os.OpenRoot(rootDir)
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }() // a directory
	r, err := read(root)
	switch {
	case err != nil:
		return "", fmt.Errorf("shim: %w", err)
	case r.Session == "" || r.Session == Own:
		return Own, nil
	case r.Session == Shared:
		return Shared, nil
	}
	return "", fmt.Errorf("shim: %s: session %q, this build knows %s and %s", manifest, r.Session, Own, Shared)
}

// read returns the manifest; without one an empty one.
func read(root *os.Root) (record, error) {
	var r record
	f, err := root.Open(manifest)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxManifest+1))
	if err != nil {
		return r, err
	}
	if len(data) > maxManifest {
		return r, fmt.Errorf("%s: more than %d bytes", manifest, maxManifest)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("%s: %w", manifest, err)
	}
	if r.Version != 1 {
		return r, fmt.Errorf("%s: version %d, this build reads version 1", manifest, r.Version)
	}
	return r, nil
}

// Shells are the installed shims of a root directory, with the shells they replace.
// An original that is missing is an error: nothing may stand for it.
func Shells(rootDir string) ([]Shell, error) {
	if _, err := os.Lstat(path.Join(rootDir, manifest)); errors.Is(err, fs.ErrNotExist) {
		return nil, nil // a Landlock domain around this process may not let it open the root directory itself
	}
	root, err := os.OpenRoot(rootDir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }() // a directory
	r, err := read(root)
	if err != nil {
		return nil, fmt.Errorf("shim: %w", err)
	}
	var out []Shell
	for _, e := range r.Entries {
		inPlace, err := isShim(root, r, e.Path)
		if err != nil {
			return nil, fmt.Errorf("shim: %w", err)
		}
		if !inPlace {
			continue // a package has replaced it since
		}
		original, err := r.original(root, e)
		if err != nil {
			return nil, fmt.Errorf("shim: original of /%s: %w", e.Path, err)
		}
		out = append(out, Shell{Path: e.Path, Real: original})
	}
	return out, nil
}

// original is the file that was behind an entry: set aside, or where its link
// led to.
func (r record) original(root *os.Root, e Entry) (string, error) {
	for range maxLinks {
		if e.Saved != "" {
			name := path.Join(dir, e.Saved)
			_, err := root.Lstat(name)
			return name, err
		}
		target, err := resolve(root, path.Join(path.Dir(e.Path), linkBelow(e)))
		if err != nil {
			return "", err
		}
		i := slices.IndexFunc(r.Entries, func(x Entry) bool { return x.Path == target })
		if i < 0 {
			return target, nil
		}
		e = r.Entries[i]
	}
	return "", errors.New("too many links")
}

// linkBelow is the text of an entry's link, relative to its directory.
func linkBelow(e Entry) string {
	if !path.IsAbs(e.Link) {
		return e.Link
	}
	return strings.Repeat("../", strings.Count(e.Path, "/")) + e.Link[1:]
}

// isShim reports whether a path is a program of the manifest: the same file, or
// one of the same content.
func isShim(root *os.Root, r record, name string) (bool, error) {
	info, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil || !info.Mode().IsRegular() {
		return false, err
	}
	own, err := root.Lstat(program)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if err == nil && os.SameFile(info, own) {
		return true, nil
	}
	sum, err := digest(root, name)
	return slices.Contains(r.Programs, sum), err
}

func digest(root *os.Root, name string) (string, error) {
	f, err := root.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return digestOf(f)
}

func digestOf(f io.Reader) (string, error) {
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// maxLinks bounds the links of one path, as the kernel does.
const maxLinks = 40

// resolve follows every symbolic link of a path below the root, where absolute
// ones start at the root and none leads out of it. The result has no link.
func resolve(root *os.Root, name string) (string, error) {
	done, rest := "", strings.Split(path.Clean("/" + name)[1:], "/")
	for links := 0; len(rest) > 0; {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			done = strings.TrimPrefix(path.Dir("/"+done), "/")
			continue
		}
		next := path.Join(done, part)
		info, err := root.Lstat(next)
		if err != nil {
			return "", err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			done = next
			continue
		}
		if links++; links > maxLinks {
			return "", fmt.Errorf("%s: too many links", name)
		}
		text, err := root.Readlink(next)
		if err != nil {
			return "", err
		}
		if path.IsAbs(text) {
			done = ""
		}
		rest = append(strings.Split(text, "/"), rest...)
	}
	return done, nil
}
