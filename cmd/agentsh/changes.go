package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	linediff "github.com/rogpeppe/go-internal/diff"
	"golang.org/x/sys/unix"

	"agentsh/internal/keep"
	"agentsh/internal/text"
	"agentsh/internal/wire"
)

// maxShown is the largest file whose lines are compared, in bytes.
const maxShown = 1 << 20

// changePrinter prints what changed in a workspace.
type changePrinter struct {
	json, diff bool
	// before and after open what a file held; fs.ErrNotExist: there was none.
	before, after func(path string) (io.ReadCloser, error)
}

// between compares a checkpoint with another, or with the workspace.
func (p *changePrinter) between(c *keep.Checkpoints, dir, from, until string) error {
	old, err := c.View(from)
	if err != nil {
		return err
	}
	p.before = func(path string) (io.ReadCloser, error) { return old.Open(path) }
	if until == "" {
		p.after = inWorkspace(dir)
		return nil
	}
	now, err := c.View(until)
	if err != nil {
		return err
	}
	p.after = func(path string) (io.ReadCloser, error) { return now.Open(path) }
	return nil
}

// inWorkspace opens regular files of a workspace, whatever links lie in it.
func inWorkspace(dir string) func(string) (io.ReadCloser, error) {
	return func(path string) (io.ReadCloser, error) {
		root, err := os.OpenRoot(dir)
		if err != nil {
			return nil, err
		}
		defer root.Close()
		info, err := root.Lstat(filepath.FromSlash(path))
		if err != nil {
			return nil, err
		}
		if !info.Mode().IsRegular() {
			return nil, fmt.Errorf("%s: no regular file: %w", path, fs.ErrNotExist)
		}
		return root.OpenFile(filepath.FromSlash(path), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	}
}

// changeJSON is a change with the lines that changed.
type changeJSON struct {
	wire.Change
	Binary bool   `json:"binary,omitempty"`
	Diff   string `json:"diff,omitempty"`
}

func (p *changePrinter) print(out io.Writer, list []wire.Change) error {
	if p.json {
		return p.printJSON(out, list)
	}
	for _, c := range list {
		name := text.Visible(c.Path)
		if c.From != "" {
			name = text.Visible(c.From) + " -> " + name
		}
		fmt.Fprintf(out, "%-8s  %s\n", c.Kind, name)
		if !p.diff {
			continue
		}
		lines, why, err := p.compare(c)
		if err != nil {
			return fail(exitOurs, err, "")
		}
		if why != "" {
			fmt.Fprintf(out, "  (%s)\n", why)
		}
		for l := range strings.Lines(lines) {
			fmt.Fprintln(out, visibleLine(strings.TrimSuffix(l, "\n")))
		}
	}
	return nil
}

func (p *changePrinter) printJSON(out io.Writer, list []wire.Change) error {
	all := []changeJSON{}
	for _, c := range list {
		one := changeJSON{Change: c}
		if p.diff {
			lines, why, err := p.compare(c)
			if err != nil {
				return fail(exitOurs, err, "")
			}
			one.Diff, one.Binary = lines, why == binaryWords
		}
		all = append(all, one)
	}
	return json.NewEncoder(out).Encode(all)
}

// visibleLine shows a line of a file; tabs stay what they are.
func visibleLine(s string) string {
	parts := strings.Split(s, "\t")
	for i := range parts {
		parts[i] = text.Visible(parts[i])
	}
	return strings.Join(parts, "\t")
}

const binaryWords = "binary"

// compare returns the lines in which a file differs, or why there are none.
func (p *changePrinter) compare(c wire.Change) (lines, why string, err error) {
	old := c.Path
	if c.From != "" {
		old = c.From
	}
	before, beforeWhy, err := readSide(p.before, old)
	if err != nil {
		return "", "", err
	}
	after, afterWhy, err := readSide(p.after, c.Path)
	if err != nil {
		return "", "", err
	}
	if beforeWhy != "" || afterWhy != "" {
		return "", firstOf(afterWhy, beforeWhy), nil
	}
	return string(linediff.Diff("a/"+old, before, "b/"+c.Path, after)), "", nil
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// readSide reads one side of a comparison. A file that is not there is empty.
func readSide(open func(string) (io.ReadCloser, error), path string) (data []byte, why string, err error) {
	f, err := open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", nil
	}
	if errors.Is(err, keep.ErrNotKept) {
		return nil, "its old content was not kept", nil
	}
	if err != nil {
		return nil, "", err
	}
	defer f.Close()
	data, err = io.ReadAll(io.LimitReader(f, maxShown+1))
	switch {
	case err != nil:
		return nil, "", err
	case len(data) > maxShown:
		return nil, "larger than 1 MiB", nil
	case !utf8.Valid(data) || bytes.IndexByte(data, 0) >= 0:
		return nil, binaryWords, nil
	}
	return data, "", nil
}
