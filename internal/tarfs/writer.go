package tarfs

import (
	"archive/tar"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"agentsh/internal/wire"
)

// Writer writes a stream entry by entry, for callers whose entries are not in one
// tree; others use [Pack]. It checks names, modes, link targets and limits as the
// receiver does. It is not safe for concurrent use.
type Writer struct {
	tw       *tar.Writer
	tally    tally
	buffer   []byte
	manifest wire.Manifest
}

// NewWriter begins a stream. The stream is complete only after [Writer.Close].
func NewWriter(w io.Writer, limits Limits) *Writer {
	return &Writer{tw: tar.NewWriter(w), tally: tally{limits: limits.withDefaults()}, buffer: make([]byte, copyBuffer)}
}

// Dir writes a directory. The receiver creates other directories with mode 755 if an
// entry is below them.
func (w *Writer) Dir(name string, mode fs.FileMode) error {
	return w.put(wire.ManifestEntry{Path: wire.Name(name), Type: typeDir, Mode: uint32(mode)})
}

// Symlink writes a symbolic link, whose target must stay beneath the root.
func (w *Writer) Symlink(name, target string) error {
	if err := w.tally.checkTarget(name, target); err != nil {
		return err
	}
	return w.put(wire.ManifestEntry{Path: wire.Name(name), Type: typeSymlink, Mode: 0o777, Target: wire.Name(target)})
}

// File writes a regular file of exactly size bytes. It returns the SHA-256 of the
// bytes in the stream.
func (w *Writer) File(name string, mode fs.FileMode, size int64, r io.Reader) (wire.Digest, error) {
	if err := w.put(wire.ManifestEntry{Path: wire.Name(name), Type: typeFile, Mode: uint32(mode), Size: size}); err != nil {
		return wire.Digest{}, err
	}
	return w.fill(r)
}

// fill writes the content of the last entry and sets its digest.
func (w *Writer) fill(r io.Reader) (wire.Digest, error) {
	e := &w.manifest.Entries[len(w.manifest.Entries)-1]
	sum := sha256.New()
	n, err := io.CopyBuffer(io.MultiWriter(w.tw, sum), onlyReader{io.LimitReader(r, e.Size)}, w.buffer)
	if err != nil {
		return wire.Digest{}, fmt.Errorf("%q: %w", e.Path, err)
	}
	if n != e.Size {
		return wire.Digest{}, fmt.Errorf("%q shrank from %d to %d bytes while it was packed", e.Path, e.Size, n)
	}
	sum.Sum(e.SHA256[:0])
	return e.SHA256, nil
}

// put checks an entry as the receiver will, and writes its header.
func (w *Writer) put(e wire.ManifestEntry) error {
	if err := w.tally.checkName(string(e.Path)); err != nil {
		return err
	}
	if e.Path == manifestName {
		return refuse(string(e.Path), "name is reserved")
	}
	if e.Type != typeSymlink && fs.FileMode(e.Mode)&^permBits != 0 {
		return refuse(string(e.Path), "mode %o has bits other than %o", e.Mode, permBits)
	}
	return w.header(e)
}

// header counts and writes one entry.
func (w *Writer) header(e wire.ManifestEntry) error {
	if err := w.tally.entry(string(e.Path), e.Size); err != nil {
		return err
	}
	h := &tar.Header{Name: string(e.Path), Mode: int64(e.Mode), Size: e.Size, Linkname: string(e.Target), Format: tar.FormatPAX}
	switch e.Type {
	case typeFile:
		h.Typeflag = tar.TypeReg
	case typeDir:
		h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
	case typeSymlink:
		h.Typeflag = tar.TypeSymlink
	}
	if err := w.tw.WriteHeader(h); err != nil {
		return fmt.Errorf("%q: %w", e.Path, err)
	}
	w.manifest.Entries = append(w.manifest.Entries, e)
	return nil
}

// leaveOut records a refused entry; an exceeded limit ends the archive.
func (w *Writer) leaveOut(name string, err error) error {
	if !errors.Is(err, ErrRefused) {
		return err
	}
	if len(w.manifest.Skipped) >= w.tally.limits.Files {
		return fmt.Errorf("%q: too many entries left out: %w", name, ErrLimit)
	}
	w.manifest.Skipped = append(w.manifest.Skipped, err.Error())
	return nil
}

// Close writes the manifest, ends the stream and returns the manifest. It does not
// close the underlying writer.
func (w *Writer) Close() (wire.Manifest, error) {
	if err := writeManifest(w.tw, w.manifest); err != nil {
		return wire.Manifest{}, err
	}
	return w.manifest, w.tw.Close()
}
