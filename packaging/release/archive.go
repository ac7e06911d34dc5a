package main

import (
	"archive/tar"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// member is one file of an archive.
type member struct {
	src, dst string
	info     fileInfo
}

// archive writes one archive with the programs of one architecture.
func (m *maker) archive(a archive, arch string, programs []binary) (err error) {
	if !slices.Equal(a.Formats, []string{"tar.gz"}) {
		return fmt.Errorf("archive %s: formats %v: only tar.gz is known", a.ID, a.Formats)
	}
	name, err := m.release.expand(a.NameTemplate, arch)
	if err != nil {
		return err
	}
	members, err := a.members()
	if err != nil {
		return err
	}
	for _, p := range programs {
		members = append(members, member{p.path, p.name, a.BuildsInfo})
	}
	f, err := os.Create(filepath.Join(m.out, name+".tar.gz"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	zipped, err := gzip.NewWriterLevel(f, gzip.BestCompression)
	if err != nil {
		return err
	}
	w := tar.NewWriter(zipped)
	for _, one := range members {
		if err := m.pack(w, one); err != nil {
			return fmt.Errorf("%s: %w", one.src, err)
		}
	}
	return errors.Join(w.Close(), zipped.Close())
}

// members lists the files of an archive by their names in it. A pattern without
// a match is an error.
func (a archive) members() ([]member, error) {
	var out []member
	for _, f := range a.Files {
		found, err := filepath.Glob(f.Src)
		if err != nil || len(found) == 0 {
			return nil, errors.Join(fmt.Errorf("%s: no such file", f.Src), err)
		}
		for _, src := range found {
			dst := f.Dst
			if f.StripParent {
				dst = filepath.Join(dst, filepath.Base(src))
			} else if strings.Contains(f.Src, "*") {
				return nil, fmt.Errorf("%s: a pattern needs strip_parent", f.Src)
			}
			out = append(out, member{src, dst, f.Info})
		}
	}
	slices.SortFunc(out, func(a, b member) int { return cmp.Compare(a.dst, b.dst) })
	return out, nil
}

func (m *maker) pack(w *tar.Writer, one member) error {
	f, err := os.Open(one.src)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	text, err := m.release.expand(one.info.MTime, "")
	if err != nil {
		return err
	}
	mtime, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return err
	}
	header := &tar.Header{
		Typeflag: tar.TypeReg, Name: one.dst, Size: info.Size(), Mode: one.info.Mode,
		ModTime: mtime, Uname: one.info.Owner, Gname: one.info.Group,
	}
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return err
}
