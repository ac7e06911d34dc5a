package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// generated is the directory in which .goreleaser.yml finds generated files.
const generated = "out/package"

// generate makes the manual, the schemas, the completions, the notices and the scripts. It
// runs the programs of this machine's architecture.
func (m *maker) generate(ctx context.Context, programs []binary) error {
	if err := os.RemoveAll(generated); err != nil {
		return err
	}
	for _, d := range []string{"man", "completions", "schemas", "scripts"} {
		if err := os.MkdirAll(filepath.Join(generated, d), 0o755); err != nil {
			return err
		}
	}
	for _, p := range programs {
		if err := m.document(ctx, p); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	notices, err := m.notices(ctx, programs)
	if err != nil {
		return fmt.Errorf("notices: %w", err)
	}
	if err := os.WriteFile(filepath.Join(generated, "THIRD_PARTY_NOTICES"), notices, 0o644); err != nil {
		return err
	}
	scripts, err := filepath.Glob("packaging/scripts/*.sh")
	if err != nil || len(scripts) == 0 {
		return errors.Join(errors.New("no packaging/scripts"), err)
	}
	for _, s := range scripts {
		if err := copyFile(s, filepath.Join(generated, "scripts", filepath.Base(s)), 0o755); err != nil {
			return err
		}
	}
	// nfpm gives the scripts of an apk the times of their files.
	return filepath.WalkDir(generated, func(name string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Chtimes(name, m.release.time, m.release.time))
	})
}

// schemas are the commands that print the JSON Schema of a kind of file.
var schemas = map[string]map[string][]string{
	"agentsh": {
		"policy": {"policy", "schema", "policy"}, "tests": {"policy", "schema", "tests"}, "config": {"policy", "schema", "config"},
	},
	"agentctl": {
		"harness": {"schema", "harness"}, "provider": {"schema", "provider"}, "batch": {"schema", "batch"}, "result": {"schema", "result"},
	},
}

// document runs a program to write its manual, its schemas and its completions.
func (m *maker) document(ctx context.Context, p binary) error {
	path, err := filepath.Abs(p.path)
	if err != nil {
		return err
	}
	pages := filepath.Join(generated, "man")
	if err := m.run(ctx, nil, os.Stderr, path, "man", "--dir", pages); err != nil {
		return err
	}
	found, err := filepath.Glob(filepath.Join(pages, "*.1"))
	if err != nil {
		return err
	}
	for _, page := range found {
		if err := zip(page); err != nil {
			return err
		}
	}
	for kind, command := range schemas[p.name] {
		var schema bytes.Buffer
		if err := m.run(ctx, nil, &schema, path, command...); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(generated, "schemas", kind+".schema.json"), schema.Bytes(), 0o644); err != nil {
			return err
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		var script bytes.Buffer
		if err := m.run(ctx, nil, &script, path, "completion", shell); err != nil {
			return err
		}
		if !strings.Contains(script.String(), p.name) {
			return fmt.Errorf("completion %s does not name the program", shell)
		}
		if err := os.WriteFile(filepath.Join(generated, "completions", p.name+"."+shell), script.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// zip compresses a file in place, without name and time in the header.
func zip(name string) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := w.Write(data); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return errors.Join(os.WriteFile(name+".gz", b.Bytes(), 0o644), os.Remove(name))
}

// copyFile copies a file with exactly the given mode, whatever the umask.
func copyFile(from, to string, mode fs.FileMode) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(to, data, mode), os.Chmod(to, mode))
}
