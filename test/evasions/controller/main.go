// Controller lets the corpus of bypasses attack the parts of the controller
// that read what an agent made, one verb each. It plays a supervisor that
// confirms everything: its archives have a matching manifest.
//
//	extract TAR DIR       unpack a foreign archive as results are unpacked
//	collect DIR           take a directory out and print its files
//	env NAME VALUE FILE   write a .env file
//	lines                 show standard input as an agent's output is shown
package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"agentsh/controller/runtime"
	"agentsh/internal/tarfs"
	"agentsh/internal/wire"
	"agentsh/policy/env"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "controller:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 3 && args[0] == "extract":
		return extract(args[1], args[2])
	case len(args) == 2 && args[0] == "collect":
		return collect(args[1])
	case len(args) == 4 && args[0] == "env":
		text, err := env.Format([]env.Var{{Name: args[1], Value: args[2]}})
		if err != nil {
			return err
		}
		return os.WriteFile(args[3], text, 0o600)
	case len(args) == 1 && args[0] == "lines":
		l := runtime.NewLines(func(line string) { fmt.Fprintln(os.Stdout, line) })
		_, err := io.Copy(l, os.Stdin)
		l.Flush()
		return err
	}
	return errors.New("usage: extract TAR DIR | collect DIR | env NAME VALUE FILE | lines")
}

// extract unpacks an archive of any tool, with the manifest it would have.
func extract(name, dir string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	archive, err := withManifest(f)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	_, err = tarfs.Install(context.Background(), root, archive, tarfs.UnpackOptions{RefuseGit: true})
	return err
}

// withManifest copies an archive and ends it as ours end.
func withManifest(from io.Reader) (io.Reader, error) {
	var out bytes.Buffer
	m := wire.Manifest{Entries: []wire.ManifestEntry{}}
	r, w := tar.NewReader(from), tar.NewWriter(&out)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		content, err := io.ReadAll(r)
		if err != nil {
			return nil, err
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(content); err != nil {
			return nil, err
		}
		e := wire.ManifestEntry{Path: wire.Name(strings.TrimSuffix(h.Name, "/")), Type: "file", Mode: uint32(h.Mode), Size: h.Size}
		switch h.Typeflag {
		case tar.TypeDir:
			e.Type = "dir"
		case tar.TypeSymlink:
			e.Type, e.Mode, e.Target = "symlink", 0o777, wire.Name(h.Linkname)
		default:
			e.SHA256 = sha256.Sum256(content)
		}
		m.Entries = append(m.Entries, e)
	}
	data, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: ".agentsh-manifest.json", Mode: 0o600, Size: int64(len(data)),
		Format: tar.FormatPAX}); err != nil {
		return nil, err
	}
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	return &out, w.Close()
}

// collect takes a directory out of the sandbox and prints what arrived.
func collect(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	var archive bytes.Buffer
	if _, err := tarfs.Pack(context.Background(), root, tarfs.PackOptions{SkipGit: true}, &archive); err != nil {
		return err
	}
	place, err := os.MkdirTemp("", "taken-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(place) }()
	to, err := os.OpenRoot(place)
	if err != nil {
		return err
	}
	defer func() { _ = to.Close() }()
	if _, err := tarfs.Receive(context.Background(), to, "files", &archive,
		tarfs.ReceiveOptions{UnpackOptions: tarfs.UnpackOptions{RefuseGit: true}}); err != nil {
		return err
	}
	return fs.WalkDir(to.FS(), "files", func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := to.ReadFile(name)
		if err == nil {
			_, err = os.Stdout.Write(data)
		}
		return err
	})
}
