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

// minAge is the time for which an image stays in the cache after its last use: a
// sandbox may be kept that long after its run.
const minAge = 25 * time.Hour

// Collect removes the extracted images of a cache that no run uses, and that were last
// used at least olderThan and 25 hours ago. It returns their digests. With dryRun it
// removes nothing.
func Collect(cache string, olderThan time.Duration, dryRun bool) (digests []string, err error) {
	entries, err := os.ReadDir(cache)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("images: %w", err)
	}
	last := time.Now().Add(-max(olderThan, minAge))
	var errs []error
	for _, e := range entries {
		name, isLock := strings.CutSuffix(e.Name(), lockSuffix)
		info, err := e.Info()
		if !isLock || err != nil || info.ModTime().After(last) {
			continue
		}
		removed, err := remove(filepath.Join(cache, name), dryRun)
		if err != nil {
			errs = append(errs, fmt.Errorf("image %s: %w", name, err))
		} else if removed {
			digests = append(digests, strings.Replace(name, "-", ":", 1))
		}
	}
	return digests, errors.Join(errs...)
}

// remove removes an extracted image, complete or not, unless a process uses it. Its
// lock stays: another process may wait for it.
func remove(dir string, dryRun bool) (removed bool, err error) {
	lock, err := statedir.TakeLock(dir+lockSuffix, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer lock.Close()
	for _, name := range []string{dir, dir + unfinishedSuffix} {
		if _, err := os.Lstat(name); err != nil {
			continue
		}
		removed = true
		if dryRun {
			continue
		}
		if err := statedir.RemoveTree(name); err != nil {
			return false, err
		}
	}
	return removed, nil
}
