package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"agentsh/controller/sandbox"
	"agentsh/internal/tarfs"
)

// Apply sends a plan into a sandbox: one archive for /sandbox, and one for /tmp
// when the plan has anything there. Nothing of an archive appears unless it
// arrived whole. A file of the host that is not what it was when it was planned
// is an error.
func Apply(ctx context.Context, ex sandbox.Executor, p Plan) error {
	for _, root := range []string{Root, tmp} {
		var part []Entry
		for _, e := range p.Entries {
			if strings.HasPrefix(e.Dest, root+"/") {
				part = append(part, e)
			}
		}
		if len(part) == 0 {
			continue
		}
		if err := send(ctx, ex, root, Plan{Entries: part, limits: p.limits}); err != nil {
			return fmt.Errorf("fill %s: %w", root, err)
		}
	}
	return nil
}

// send streams the entries below root and compares what arrived.
func send(ctx context.Context, ex sandbox.Executor, root string, p Plan) error {
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := p.write(ctx, root, w)
		_ = w.CloseWithError(err) // never fails; without an error it is the end
		packed <- err
	}()
	m, err := ex.CopyIn(ctx, root, r)
	_ = r.CloseWithError(io.ErrClosedPipe) // ends the writer when the sandbox gave up
	if local := <-packed; local != nil && !errors.Is(local, io.ErrClosedPipe) {
		return local // what the sandbox said only follows from it
	}
	if err != nil {
		return err
	}
	if len(m.Entries) != len(p.Entries) {
		return fmt.Errorf("%d of %d entries arrived", len(m.Entries), len(p.Entries))
	}
	for i, e := range p.Entries {
		got := m.Entries[i]
		if root+"/"+got.Path != e.Dest || got.Type != e.Kind || got.SHA256 != e.SHA256 {
			return fmt.Errorf("%s arrived as %.200q %s %s", e.Dest, got.Path, got.Type, got.SHA256)
		}
	}
	return nil
}

// write packs the entries, named relative to root.
func (p Plan) write(ctx context.Context, root string, to io.Writer) error {
	w := tarfs.NewWriter(to, p.limits)
	for _, e := range p.Entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		name := strings.TrimPrefix(e.Dest, root+"/")
		var err error
		switch e.Kind {
		case KindDir:
			err = w.Dir(name, e.Mode)
		case KindSymlink:
			err = w.Symlink(name, e.Target)
		default:
			err = writeFile(w, name, e)
		}
		if err != nil {
			return err
		}
	}
	_, err := w.Close()
	return err
}

// writeFile packs one file and compares it with what was planned.
func writeFile(w *tarfs.Writer, name string, e Entry) error {
	var content io.Reader = bytes.NewReader(e.data)
	if e.source != "" {
		f, err := e.open()
		if err != nil {
			return err
		}
		defer f.Close()
		content = f
	}
	digest, err := w.File(name, e.Mode, e.Size, content)
	if err != nil {
		return err
	}
	if n, _ := content.Read(make([]byte, 1)); n > 0 || digest != e.SHA256 {
		return fmt.Errorf("%s changed since it was planned", e.Source())
	}
	return nil
}
