// Package fetch reads files by HTTPS and stores them. A file whose digest is
// known is verified. Other files belong to such a file: what was stored first
// with it is used ever after.
package fetch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// ErrContent is a content that has another digest than the wanted one.
var ErrContent = errors.New("the content has the SHA-256")

const (
	maxFile = 4 << 20 // bytes
	maxTime = 30 * time.Second
)

// Pinned is a URL with the SHA-256 of its content.
type Pinned struct {
	URL *url.URL // without the fragment
	Sum string   // hex
}

// ParsePinned parses https://host/path#sha256=HEX.
func ParsePinned(text string) (Pinned, error) {
	u, err := url.Parse(text)
	if err != nil {
		return Pinned{}, errors.New("not a URL")
	}
	sum, ok := strings.CutPrefix(u.Fragment, "sha256=")
	sum = strings.ToLower(sum)
	raw, err := hex.DecodeString(sum)
	switch {
	case u.Scheme != "https":
		return Pinned{}, errors.New("only https is read")
	case u.Host == "" || u.User != nil || u.RawQuery != "":
		return Pinned{}, errors.New("a URL has a host, and neither a user nor a query")
	case path.Clean(u.Path) != u.Path || strings.ContainsAny(u.Path, "\\%"):
		return Pinned{}, errors.New("the path of the URL is not clean")
	case !ok || err != nil || len(raw) != sha256.Size:
		return Pinned{}, errors.New("the URL has no #sha256= with 64 digits")
	}
	u.Fragment = ""
	return Pinned{u, sum}, nil
}

// Allows reports whether a URL is below one of the prefixes of the store.
func (s Store) Allows(u *url.URL) bool {
	for _, prefix := range s.Allowed {
		if strings.HasPrefix(prefix, "https://") && strings.HasSuffix(prefix, "/") && strings.HasPrefix(u.String(), prefix) {
			return true
		}
	}
	return false
}

// refuse is the error for a URL that is below none of the prefixes.
func (s Store) refuse(u *url.URL) error {
	if s.Allows(u) {
		return nil
	}
	return fmt.Errorf("%s is below no URL of allowed_remote_resources", u)
}

// Root is the URL to which paths of a fetched harness are relative: its
// directory, or the parent of that if it is named harness.
func (p Pinned) Root() *url.URL {
	root := *p.URL
	root.Path = path.Dir(root.Path)
	if path.Base(root.Path) == "harness" {
		root.Path = path.Dir(root.Path)
	}
	return &root
}

// Store is a directory of fetched files.
type Store struct {
	Dir     string
	Allowed []string // prefixes of URLs, which end with a slash; nothing else is fetched or used
}

// dir is the directory of a pinned file and of those that belong to it. Its name is
// made of the URL as well: a copy elsewhere has other files.
func (s Store) dir(p Pinned) string {
	return filepath.Join(s.Dir, sum([]byte(p.URL.String()+"#"+p.Sum)))
}

// digest is the file with the digest of a file that belongs to a pinned one. No server
// names it: it lies beside the directories of all pinned files.
func (s Store) digest(p Pinned, rel string) string {
	return filepath.Join(s.Dir, "digests", filepath.Base(s.dir(p)), filepath.FromSlash(rel))
}

// Get returns the name of a local copy of a pinned file.
func (s Store) Get(ctx context.Context, p Pinned) (string, error) {
	if err := s.refuse(p.URL); err != nil {
		return "", err
	}
	name := filepath.Join(s.dir(p), "harness", path.Base(p.URL.Path))
	if data, err := os.ReadFile(name); err == nil && sum(data) == p.Sum {
		return name, nil
	}
	data, err := get(ctx, p.URL)
	if err != nil {
		return "", err
	}
	if got := sum(data); got != p.Sum {
		return "", fmt.Errorf("%w %s, not %s", ErrContent, got, p.Sum)
	}
	return name, write(name, data, 0o644)
}

// Companion returns the name of a local copy of a file that belongs to a pinned
// one. rel is relative to its root, with slashes.
func (s Store) Companion(ctx context.Context, p Pinned, rel string, mode fs.FileMode) (string, error) {
	if !filepath.IsLocal(rel) || path.Clean(rel) != rel || strings.ContainsAny(rel, "\x00?#%\\") {
		return "", fmt.Errorf("%.100q does not stay beneath the root of the base", rel)
	}
	u := p.Root()
	u.Path = path.Join(u.Path, rel)
	if err := s.refuse(u); err != nil {
		return "", err
	}
	name := filepath.Join(s.dir(p), filepath.FromSlash(rel))
	digest := s.digest(p, rel)
	want, err := os.ReadFile(digest)
	known := err == nil
	if data, err := os.ReadFile(name); err == nil && known {
		if sum(data) != string(want) {
			return "", fmt.Errorf("the stored copy %s was changed: remove it", name)
		}
		return name, os.Chmod(name, mode)
	}
	data, err := get(ctx, u)
	if err != nil {
		return "", err
	}
	if known && sum(data) != string(want) {
		return "", fmt.Errorf("%s has another content than at first, the SHA-256 %s instead of %s: remove %s to take it",
			u, sum(data), want, digest)
	}
	// The digest first: a copy without one is not used.
	if err := write(digest, []byte(sum(data)), 0o644); err != nil {
		return "", err
	}
	return name, write(name, data, mode)
}

func sum(data []byte) string {
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:])
}

// write replaces a file.
func write(name string, data []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	temp, err := os.CreateTemp(filepath.Dir(name), ".fetch-")
	if err != nil {
		return err
	}
	_, err = temp.Write(data)
	err = errors.Join(err, temp.Chmod(mode), temp.Close())
	if err == nil {
		err = os.Rename(temp.Name(), name)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(temp.Name()))
	}
	return err
}

// get reads a file by HTTPS.
func get(ctx context.Context, u *url.URL) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, maxTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	client := http.Client{CheckRedirect: func(to *http.Request, _ []*http.Request) error {
		return fmt.Errorf("the server redirects to %s: write that URL", to.URL.Redacted())
	}}
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("get %s: %s", u, res.Status)
	}
	data, err := io.ReadAll(io.LimitReader(res.Body, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", u, err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("get %s: more than %d bytes", u, maxFile)
	}
	return data, nil
}
