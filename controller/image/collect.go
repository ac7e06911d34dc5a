package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/statedir"
)

// minAge is the time for which an image stays in the cache after its last use.
const minAge = 25 * time.Hour

// CollectOptions configure [Collect].
type CollectOptions struct {
	OlderThan time.Duration                  // since the last use; at least 25 hours
	Used      func(dir string) (bool, error) // whether a sandbox uses an image, also one without a run; nil: none does
	DryRun    bool                           // nothing is removed
}

// Collect removes the extracted images of a cache that no run and no sandbox uses. It
// returns their digests.
func Collect(cache string, o CollectOptions) (digests []string, err error) {
	entries, err := os.ReadDir(cache)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("images: %w", err)
	}
	last := time.Now().Add(-max(o.OlderThan, minAge))
	var errs []error
	for _, e := range entries {
		name, isLock := strings.CutSuffix(e.Name(), lockSuffix)
		info, err := e.Info()
		if !isLock || err != nil || info.ModTime().After(last) {
			continue
		}
		removed, err := o.remove(filepath.Join(cache, name))
		if err != nil {
			errs = append(errs, fmt.Errorf("image %s: %w", name, err))
		} else if removed {
			digests = append(digests, strings.Replace(name, "-", ":", 1))
		}
	}
	return digests, errors.Join(errs...)
}

// remove removes an extracted image, complete or not, unless a run or a sandbox uses
// it. Its lock stays: another process may wait for it.
func (o CollectOptions) remove(dir string) (removed bool, err error) {
	lock, err := statedir.TakeLock(dir+lockSuffix, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer lock.Close()
	if o.Used != nil {
		if used, err := o.Used(dir); used || err != nil {
			return false, err
		}
	}
	for _, name := range []string{dir, dir + unfinishedSuffix} {
		if _, err := os.Lstat(name); err != nil {
			continue
		}
		removed = true
		if o.DryRun {
			continue
		}
		if err := statedir.RemoveTree(name); err != nil {
			return false, err
		}
	}
	return removed, nil
}
