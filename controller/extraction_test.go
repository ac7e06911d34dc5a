package controller

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/controller/sandbox"
	"agentsh/internal/tarfs"
	"agentsh/internal/wire"
)

// copying is a sandbox whose CopyOut is a function.
type copying struct {
	sandbox.Sandbox
	copyOut func(w io.Writer) (wire.Manifest, error)
}

func (c copying) CopyOut(_ context.Context, _ wire.CopyOut, w io.Writer) error {
	_, err := c.copyOut(w)
	return err
}

func TestOnlyTheSandboxSaysThatThereIsNoOutput(t *testing.T) {
	staging := t.TempDir()
	dir := filepath.Join(staging, outputName)
	take := func(copyOut func(w io.Writer) (wire.Manifest, error)) error {
		x := extraction{sandbox: copying{copyOut: copyOut}, results: &results{staging: staging}, control: &control{forced: t.Context()}}
		return x.output(t.Context(), &work{})
	}
	removed := func(io.Writer) (wire.Manifest, error) {
		return wire.Manifest{}, fmt.Errorf("copy out: %w", &wire.Error{Code: wire.CodeNotFound, Message: "no such directory"})
	}
	if err := take(removed); err != nil {
		t.Error(err)
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 0 {
		t.Errorf("the output that the agent removed: %v, %v", names, err)
	}
	lost := func(w io.Writer) (wire.Manifest, error) {
		archive := tarfs.NewWriter(w, resultLimits)
		if _, err := archive.File("first", 0o644, 4, strings.NewReader("text")); err != nil {
			return wire.Manifest{}, err
		}
		incoming, err := filepath.Glob(filepath.Join(staging, ".agentsh-incoming-*")) // it is read, so there is one
		if err != nil || len(incoming) != 1 {
			t.Errorf("%d directories to unpack into: %v", len(incoming), err)
		}
		for _, name := range incoming {
			if err := os.Rename(name, filepath.Join(t.TempDir(), "elsewhere")); err != nil {
				t.Error(err)
			}
		}
		return archive.Close()
	}
	if err := take(lost); err == nil {
		t.Error("an output that could not be published is none")
	}
	if _, err := os.Lstat(dir); err == nil {
		t.Error("there is an output")
	}
}
