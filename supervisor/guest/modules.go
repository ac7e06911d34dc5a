package guest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// loaded says what was loaded into the kernel.
type loaded struct {
	number int
	took   time.Duration
}

// loadModules loads the modules in a directory, in the order of their names, and removes them.
// One may need those before it.
func loadModules(dir string) (done loaded, err error) {
	begun := uptime()
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return done, nil // the kernel has all that it needs
	}
	if err != nil {
		return done, err
	}
	for _, file := range files {
		if err := loadModule(filepath.Join(dir, file.Name())); err != nil {
			return done, err
		}
		done.number++
	}
	done.took = uptime() - begun
	return done, os.RemoveAll(dir)
}

// loadModule loads a module. See finit_module(2).
func loadModule(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	err = unix.FinitModule(int(f.Fd()), "", 0)
	if err == nil || errors.Is(err, unix.EEXIST) {
		return nil
	}
	if errors.Is(err, unix.ENODEV) { // a driver of a device that this machine does not have
		return nil
	}
	return fmt.Errorf("load module %s: %w: is it of this kernel?", filepath.Base(name), err)
}
