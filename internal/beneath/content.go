package beneath

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// CopyContent copies the content of a file to an empty file. It shares blocks
// where the filesystem can, and holes stay holes.
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

// EachData calls f for each part of a file that may hold data, in order. A
// filesystem without SEEK_DATA gives one part. See lseek(2).
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

// DataBytes returns how many bytes of a file are not in holes.
func DataBytes(f *os.File, size int64) (n int64, err error) {
	err = EachData(f, size, func(at, until int64) error {
		n += until - at
		return nil
	})
	return n, err
}

// Size returns the size of an open file in bytes.
func Size(f *os.File) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
