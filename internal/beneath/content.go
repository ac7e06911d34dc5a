package beneath

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// CopyContent copies a file to an empty one, shared where the filesystem can. What
// is a hole stays one.
func CopyContent(to, from *os.File) error {
	if unix.IoctlFileClone(int(to.Fd()), int(from.Fd())) == nil {
		return nil
	}
	size, err := Size(from)
	if err != nil {
		return err
	}
	err = EachData(from, size, func(at, until int64) error {
		for _, f := range []*os.File{from, to} {
			if _, err := f.Seek(at, io.SeekStart); err != nil {
				return err
			}
		}
		_, err := io.CopyN(to, from, until-at)
		if errors.Is(err, io.EOF) { // it was cut meanwhile
			err = nil
		}
		return err
	})
	if err != nil {
		return err
	}
	return to.Truncate(size)
}

// EachData calls f for every part of a file that may hold something else than
// zeros, in order. See lseek(2), SEEK_DATA; where a filesystem has none it is one part.
func EachData(file *os.File, size int64, f func(at, until int64) error) error {
	fd := int(file.Fd())
	for at := int64(0); at < size; {
		data, err := unix.Seek(fd, at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) { // holes to the end
			return nil
		}
		if err != nil {
			return fmt.Errorf("find data: %w", err)
		}
		hole, err := unix.Seek(fd, data, unix.SEEK_HOLE)
		if err != nil && !errors.Is(err, unix.ENXIO) { // it was cut meanwhile
			return fmt.Errorf("find hole: %w", err)
		}
		if err != nil || data >= size {
			return nil
		}
		if at = min(hole, size); at <= data {
			return nil
		}
		if err := f(data, at); err != nil {
			return err
		}
	}
	return nil
}

// DataBytes is how many bytes of a file are no holes.
func DataBytes(f *os.File, size int64) (n int64, err error) {
	err = EachData(f, size, func(at, until int64) error {
		n += until - at
		return nil
	})
	return n, err
}

func Size(f *os.File) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
