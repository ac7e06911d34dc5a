// Package fsmagic tells file systems apart by their first bytes.
package fsmagic

import (
	"encoding/binary"
	"errors"
	"io"
	"strings"
)

// kinds are file systems by their magic numbers, as the kernel names them. See magic(5).
var kinds = []struct {
	name   string
	at     int64
	number uint32
	mask   uint32
}{
	{"ext4", 1024 + 56, 0xef53, 0xffff},
	{"squashfs", 0, 0x73717368, 0xffffffff},
	{"erofs", 1024, 0xe0f5e1e2, 0xffffffff},
}

// Of returns the name of the file system on a disk.
func Of(disk io.ReaderAt) (string, error) {
	var names []string
	for _, k := range kinds {
		names = append(names, k.name)
		var b [4]byte
		if _, err := disk.ReadAt(b[:], k.at); err != nil {
			continue // it is shorter, or cannot be read: it has none of them
		}
		if binary.LittleEndian.Uint32(b[:])&k.mask == k.number {
			return k.name, nil
		}
	}
	return "", errors.New("it has no file system that is known here: " + strings.Join(names, ", "))
}
