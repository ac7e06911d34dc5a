package provider

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"time"

	"golang.org/x/sys/unix"
)

// Local is the gateway of the local backend. Its state file holds names and
// digests, never values. It is not safe for concurrent use.
type Local struct {
	dir string
	key []byte
}

// state is the content of the state file.
type state struct {
	Version   int      `json:"version"`
	Providers []record `json:"providers"`
}

// record is one provider in the state file.
type record struct {
	Name        string    `json:"name"`
	Type        string    `json:"type"`
	Digest      string    `json:"digest"`
	Credentials []string  `json:"credentials,omitempty"` // names
	Endpoints   []string  `json:"endpoints,omitempty"`
	Header      string    `json:"header,omitempty"`
	Query       string    `json:"query,omitempty"`
	Path        bool      `json:"path,omitempty"`
	Updated     time.Time `json:"updated"`
}

const (
	stateVersion = 1
	stateName    = "providers.json"
	keyName      = "digest.key"
	lockName     = "lock"
	maxState     = 1 << 20 // bytes of the state file
	keySize      = 32      // bytes of the digest key
)

// OpenLocal opens the gateway in dir. It creates the directory for its owner
// only.
func OpenLocal(dir string) (*Local, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open the local gateway: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("open the local gateway: %w", err)
	}
	if info.Mode().Perm()&0o022 != 0 {
		return nil, fmt.Errorf("open the local gateway: others may write to %s", dir)
	}
	key, err := digestKey(dir)
	if err != nil {
		return nil, fmt.Errorf("open the local gateway: %w", err)
	}
	return &Local{dir: dir, key: key}, nil
}

// CleanLocal removes what killed controllers left in the gateway in dir. A missing directory is no
// error.
func CleanLocal(ctx context.Context, dir string) error {
	unlock, err := lock(ctx, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("clean the local gateway: %w", err)
	}
	return unlock()
}

// PeekLocal opens the gateway in dir for planning and writes nothing. A missing
// directory has no providers.
func PeekLocal(dir string) (*Local, error) {
	key, err := os.ReadFile(filepath.Join(dir, keyName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open the local gateway: %w", err)
	}
	return &Local{dir: dir, key: key}, nil
}

// digestKey reads the key of the digests, and creates it the first time.
func digestKey(dir string) ([]byte, error) {
	name := filepath.Join(dir, keyName)
	key, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeKey(dir, name); err != nil {
			return nil, err
		}
		key, err = os.ReadFile(name)
	}
	if err != nil {
		return nil, err
	}
	if len(key) != keySize {
		return nil, fmt.Errorf("%s has %d bytes instead of %d", name, len(key), keySize)
	}
	return key, nil
}

// makeKey creates the key unless another controller did. The key is complete
// when its name appears.
func makeKey(dir, name string) error {
	unlock, err := lock(context.Background(), dir)
	if err != nil {
		return err
	}
	fresh := make([]byte, keySize)
	_, _ = rand.Read(fresh) // never fails, see crypto/rand
	return errors.Join(publishOnce(dir, name, fresh), unlock())
}

// publishOnce writes a file under a name that does not exist yet; it leaves an
// existing one.
func publishOnce(dir, name string, data []byte) error {
	tmp, err := writeTemp(dir, data)
	if err != nil {
		return err
	}
	err = os.Link(tmp, name)
	if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	return errors.Join(err, os.Remove(tmp))
}

// tempPrefix starts the names of temporary files.
const tempPrefix = ".new-"

// removeTemp removes the temporary files of killed controllers. The gateway
// must be locked.
func removeTemp(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, tempPrefix+"*"))
	for _, name := range left {
		err = errors.Join(err, os.Remove(name))
	}
	return err
}

// writeTemp writes a temporary file of mode 0600 and returns its name.
func writeTemp(dir string, data []byte) (string, error) {
	f, err := os.CreateTemp(dir, tempPrefix+"*")
	if err != nil {
		return "", err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), nil
}

// Lock waits until no other controller changes the gateway, or ctx is done.
func (g *Local) Lock(ctx context.Context) (func() error, error) { return lock(ctx, g.dir) }

func lock(ctx context.Context, dir string) (func() error, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	locked := make(chan error, 1)
	go func() {
		for {
			err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
			if !errors.Is(err, unix.EINTR) {
				locked <- err
				return
			}
		}
	}()
	select {
	case err := <-locked:
		if err == nil {
			err = removeTemp(dir)
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return f.Close, nil
	case <-ctx.Done():
		// The goroutine ends when the lock is free; the file is closed then,
		// which gives the lock up again.
		go func() { <-locked; f.Close() }()
		return nil, ctx.Err()
	}
}

// Digest returns the keyed digest that the state file stores.
func (g *Local) Digest(d Definition) string { return d.Digest(g.key) }

// Providers returns the providers of the state file.
func (g *Local) Providers(context.Context) ([]State, error) {
	s, err := g.read()
	if err != nil {
		return nil, err
	}
	out := make([]State, len(s.Providers))
	for i, p := range s.Providers {
		out[i] = State{Name: p.Name, Digest: p.Digest}
	}
	return out, nil
}

// read reads the state file. A missing file is empty.
func (g *Local) read() (state, error) {
	name := filepath.Join(g.dir, stateName)
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return state{Version: stateVersion}, nil
	}
	if err != nil {
		return state{}, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxState+1))
	if err != nil {
		return state{}, err
	}
	var s state
	if len(data) > maxState {
		return state{}, fmt.Errorf("%s is larger than %d bytes", name, maxState)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return state{}, fmt.Errorf("%s: %w", name, err)
	}
	if s.Version != stateVersion {
		return state{}, fmt.Errorf("%s has version %d, this program reads %d", name, s.Version, stateVersion)
	}
	return s, nil
}

// Apply records a provider.
func (g *Local) Apply(_ context.Context, c Change) error {
	s, err := g.read()
	if err != nil {
		return err
	}
	d := c.Definition
	r := record{
		Name: d.Name, Type: d.Type, Digest: c.Digest, Endpoints: d.Endpoints, Header: d.Header, Query: d.Query, Path: d.Path,
		Updated: time.Now().UTC().Truncate(time.Second),
	}
	for name := range d.Credentials {
		r.Credentials = append(r.Credentials, name)
	}
	sort.Strings(r.Credentials)
	if i := slices.IndexFunc(s.Providers, func(p record) bool { return p.Name == d.Name }); i >= 0 {
		s.Providers[i] = r
	} else {
		s.Providers = append(s.Providers, r)
	}
	return g.write(s)
}

// write replaces the state file by a rename.
func (g *Local) write(s state) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	tmp, err := writeTemp(g.dir, append(data, '\n'))
	if err != nil {
		return err
	}
	if err := os.Rename(tmp, filepath.Join(g.dir, stateName)); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return nil
}
