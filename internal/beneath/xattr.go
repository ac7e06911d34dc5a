package beneath

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Xattr is one extended attribute. See xattr(7).
type Xattr struct {
	Name  string `json:"name"`
	Value []byte `json:"value"`
}

// savedXattr reports whether an attribute belongs to the file's owner: user
// attributes and access control lists. Others, such as security labels, belong
// to the machine.
func savedXattr(name string) bool {
	return strings.HasPrefix(name, "user.") || strings.HasPrefix(name, "system.posix_acl_")
}

// procName returns a path that leads to an open file, for calls that take no
// descriptor. A name below it would be resolved anew, through links.
func procName(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// Xattrs reads the extended attributes of an open file, sorted by name. The
// file must not be a symbolic link. A filesystem without such attributes gives
// none.
func Xattrs(fd int) ([]Xattr, error) {
	path := procName(fd)
	list, err := grown(func(buf []byte) (int, error) { return unix.Listxattr(path, buf) })
	if errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list extended attributes: %w", err)
	}
	var out []Xattr
	for attribute := range strings.SplitSeq(strings.TrimRight(string(list), "\x00"), "\x00") {
		if !savedXattr(attribute) {
			continue
		}
		value, err := grown(func(buf []byte) (int, error) { return unix.Getxattr(path, attribute, buf) })
		if errors.Is(err, unix.ENODATA) {
			continue // it was removed meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("read extended attribute %s: %w", attribute, err)
		}
		out = append(out, Xattr{attribute, value})
	}
	slices.SortFunc(out, func(a, b Xattr) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// grown calls read with a buffer of the size that read asks for.
func grown(read func([]byte) (int, error)) ([]byte, error) {
	for {
		size, err := read(nil)
		if err != nil || size == 0 {
			return nil, err
		}
		buf := make([]byte, size)
		size, err = read(buf)
		if !errors.Is(err, unix.ERANGE) { // it grew meanwhile
			return buf[:max(size, 0)], err
		}
	}
}

// SameXattrs reports whether two sorted lists are equal.
func SameXattrs(a, b []Xattr) bool {
	return slices.EqualFunc(a, b, func(x, y Xattr) bool { return x.Name == y.Name && bytes.Equal(x.Value, y.Value) })
}

// setXattrs gives an entry exactly the wanted attributes. The owner needs write
// permission to change them, so it sets the mode first.
func (e Entry) setXattrs(mode uint32, want []Xattr) error {
	have, err := Xattrs(e.FD)
	if err != nil || SameXattrs(have, want) {
		return err
	}
	if err := e.chmod(mode&0o777 | 0o200); err != nil {
		return err
	}
	path := procName(e.FD)
	for _, x := range have {
		if !slices.ContainsFunc(want, func(w Xattr) bool { return w.Name == x.Name }) {
			if err := unix.Removexattr(path, x.Name); err != nil {
				return fmt.Errorf("remove extended attribute %s: %w", x.Name, err)
			}
		}
	}
	for _, x := range want {
		if err := unix.Setxattr(path, x.Name, x.Value, 0); err != nil {
			return fmt.Errorf("set extended attribute %s: %w", x.Name, err)
		}
	}
	return nil
}
