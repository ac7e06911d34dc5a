package project

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"agentsh/internal/layout"
	"agentsh/internal/statedir"
	"agentsh/policy"
)

// Trust is the directory of records about trusted policies. It lies outside every
// workspace.
type Trust string

// Record is a policy of a project that the user trusts.
type Record struct {
	File    string            `json:"file"`
	Digests map[string]string `json:"sha256"` // of each file, by its name
	Trusted time.Time         `json:"trusted"`
	Changed string            `json:"changed,omitempty"` // in lists only: why it is not trusted any more
}

// ErrChanged means that a trusted file is not what it was.
var ErrChanged = errors.New("has changed since it was trusted")

// Add trusts a project's policy as it was read: sources are its files.
func (t Trust) Add(file string, sources []policy.Source) (Record, error) {
	r := Record{File: file, Digests: map[string]string{}, Trusted: time.Now().UTC().Truncate(time.Second)}
	for _, s := range sources {
		if !ofMachine(s.Name) {
			r.Digests[s.Name] = digest(s.Data)
		}
	}
	if err := os.MkdirAll(string(t), 0o700); err != nil {
		return r, err
	}
	if err := t.check(); err != nil {
		return r, err
	}
	return r, statedir.WriteJSON(t.name(file), r)
}

// Forget reports whether there was a record, and removes it.
func (t Trust) Forget(file string) (bool, error) {
	err := os.Remove(t.name(file))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// List returns all records by file, and what has changed.
func (t Trust) List() ([]Record, error) {
	names, err := filepath.Glob(t.name("") + "*.json")
	if len(names) == 0 || err != nil {
		return nil, err
	}
	if err := t.check(); err != nil {
		return nil, err
	}
	var out []Record
	for _, name := range names {
		r, err := load(name)
		if err != nil {
			return nil, err
		}
		for file := range r.Digests {
			if _, err := r.read(file); err != nil {
				r.Changed = err.Error()
			}
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b Record) int { return strings.Compare(a.File, b.File) })
	return out, nil
}

// find returns the record of a file, if there is one.
func (t Trust) find(file string) (r Record, trusted bool, err error) {
	r, err = load(t.name(file))
	if errors.Is(err, fs.ErrNotExist) {
		return r, false, nil
	}
	if err == nil {
		err = t.check()
	}
	if err == nil && r.File != file {
		err = fmt.Errorf("%s is about %s: remove it", t.name(file), r.File)
	}
	return r, true, err
}

// UsersTrust is where the user who runs this program has records; empty: nowhere.
func UsersTrust() Trust {
	state, err := layout.FindState(os.Getenv, os.Geteuid())
	if err != nil {
		return ""
	}
	return Trust(state.Trust())
}

// Has reports whether there is a record of the policy of a project, at whose root dir
// then is.
func (t Trust) Has(dir string) bool {
	if t == "" {
		return false
	}
	_, err := os.Lstat(t.name(PolicyFile(dir)))
	return err == nil
}

// name is the record of a file; of no file, the directory.
func (t Trust) name(file string) string {
	if file == "" {
		return string(t) + "/"
	}
	return filepath.Join(string(t), digest([]byte(file))[:32]+".json")
}

// check refuses a directory that another user may write to.
func (t Trust) check() error {
	info, err := os.Lstat(string(t))
	if err != nil {
		return err
	}
	st, _ := info.Sys().(*syscall.Stat_t)
	if st == nil || !info.IsDir() || int(st.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s must be a directory of this user that nobody else may write (chmod 700)", string(t))
	}
	return nil
}

func load(name string) (r Record, err error) {
	data, err := Read(name)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("%s: %w: remove it and trust the policy again", name, err)
	}
	return r, nil
}

// read reads a file of the policy, which must be as it was.
func (r Record) read(name string) ([]byte, error) {
	data, err := Read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is gone, and was trusted", name)
	}
	if err != nil {
		return nil, err
	}
	if !ofMachine(name) && r.Digests[name] != digest(data) {
		return nil, fmt.Errorf("%s %w on %s", name, ErrChanged, r.Trusted.Local().Format("2006-01-02 15:04"))
	}
	return data, nil
}

// ofMachine reports whether a file is the machine's: an upgrade of the package may
// change it.
func ofMachine(name string) bool {
	return name == filepath.Clean(name) && strings.HasPrefix(name, filepath.Dir(layout.Config)+"/")
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
