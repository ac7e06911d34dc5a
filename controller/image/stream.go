package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Stream is the files of an image as one tar archive, whose layers are applied. Owners,
// hard links, devices and extended attributes are those of the image.
type Stream struct {
	Digest string // of the archive or layout, "sha256:" and hex; empty for a directory
	open   opener
}

// OpenStream opens a directory, an OCI layout, or an archive of docker save or of plain files.
func OpenStream(name string) (Stream, error) {
	info, err := os.Stat(name)
	if err != nil {
		return Stream{}, err
	}
	var s Stream
	switch {
	case info.Mode().IsRegular():
		s.Digest, s.open, err = openArchive(name)
	case info.IsDir() && isLayout(name):
		s.Digest, s.open, err = openLayout(name)
	case info.IsDir():
		s.open = func() (io.ReadCloser, error) { return walk(name), nil }
	default:
		err = errors.New("neither a directory nor an archive")
	}
	if err != nil {
		return Stream{}, fmt.Errorf("%s: %w", name, err)
	}
	return s, nil
}

// Write writes the archive. Names are relative and lead nowhere else. Entries that are no files
// are left out. It returns the number of files.
func (s Stream) Write(ctx context.Context, to *tar.Writer) (files int, err error) {
	in, err := s.open()
	if err != nil {
		return 0, err
	}
	defer in.Close()
	r := tar.NewReader(in)
	var all bounds
	for left := int64(maxBytes); ; files++ {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = ctx.Err()
		}
		if err == nil {
			err = all.add(h)
		}
		if err != nil {
			return files, err
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		if left -= h.Size; left < 0 {
			return files, fmt.Errorf("the image has more than %d bytes", int64(maxBytes))
		}
		if err := copyEntry(to, h, r); err != nil {
			return files, fmt.Errorf("%q: %w", h.Name, err)
		}
	}
	if err := end(in); err != nil {
		return files, err
	}
	if files == 0 {
		return 0, errors.New("there are no files")
	}
	return files, to.Close()
}

func copyEntry(to *tar.Writer, h *tar.Header, in io.Reader) error {
	name := path.Clean(strings.TrimPrefix(h.Name, "/"))
	if !filepath.IsLocal(name) {
		return errors.New("the name leads out of the image")
	}
	out := &tar.Header{
		Typeflag: h.Typeflag, Name: name, Linkname: h.Linkname, Size: h.Size, Mode: h.Mode, Uid: h.Uid, Gid: h.Gid, ModTime: h.ModTime,
		Devmajor: h.Devmajor, Devminor: h.Devminor, Format: tar.FormatPAX, PAXRecords: map[string]string{},
	}
	for key, value := range h.PAXRecords {
		if strings.HasPrefix(key, xattrRecord) {
			out.PAXRecords[key] = value
		}
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeSymlink, tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
	case tar.TypeGNUSparse:
		out.Typeflag = tar.TypeReg
	case tar.TypeDir:
		out.Name += "/"
	case tar.TypeLink:
		if out.Linkname = path.Clean(strings.TrimPrefix(h.Linkname, "/")); !filepath.IsLocal(out.Linkname) {
			return errors.New("the link leads out of the image")
		}
	default:
		return fmt.Errorf("unknown type %q of an entry: make the archive with tar --format=pax", h.Typeflag)
	}
	if err := to.WriteHeader(out); err != nil || out.Typeflag != tar.TypeReg {
		return err
	}
	_, err := io.Copy(to, in)
	return err
}

// xattrRecord begins the records of extended attributes. See tar(5), SCHILY.xattr.
const xattrRecord = "SCHILY.xattr."

// walk is a directory of this machine as an archive. Its reader must be closed.
func walk(dir string) io.ReadCloser {
	r, w := io.Pipe()
	go func() { // ends when r is closed
		t := tar.NewWriter(w)
		err := (&walker{to: t, seen: map[identity]string{}}).add(dir)
		if err == nil { // else the archive has no end
			err = t.Close()
		}
		_ = w.CloseWithError(err)
	}()
	return r
}

// identity is one file under all its names.
type identity struct{ device, inode uint64 }

type walker struct {
	to   *tar.Writer
	seen map[identity]string // names of files with several
}

func (w *walker) add(dir string) error {
	return filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil || info.Mode()&fs.ModeSocket != 0 {
			return err
		}
		return w.entry(file, filepath.ToSlash(name), info)
	})
}

func (w *walker) entry(file, name string, info fs.FileInfo) error {
	target := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		var err error
		if target, err = os.Readlink(file); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	h.Name, h.Uname, h.Gname, h.Format = name, "", "", tar.FormatPAX
	if info.IsDir() {
		h.Name += "/"
	}
	if s, known := info.Sys().(*syscall.Stat_t); known && !info.IsDir() && s.Nlink > 1 {
		id := identity{s.Dev, s.Ino}
		if first, is := w.seen[id]; is {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
			return w.to.WriteHeader(h)
		}
		w.seen[id] = name
	}
	if !info.Mode().IsRegular() {
		return w.to.WriteHeader(h)
	}
	if h.PAXRecords, err = capabilities(file); err != nil {
		return err
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := w.to.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.CopyN(w.to, f, h.Size)
	return err
}

// capabilityName is the attribute that gives a program capabilities. See capabilities(7).
const capabilityName = "security.capability"

func capabilities(file string) (map[string]string, error) {
	value := make([]byte, 64)
	n, err := unix.Lgetxattr(file, capabilityName, value)
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return map[string]string{xattrRecord + capabilityName: string(value[:n])}, nil
}
