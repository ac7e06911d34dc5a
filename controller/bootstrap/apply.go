package bootstrap

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sort"
	"strings"

	"agentsh/internal/layout"

	"agentsh/controller/sandbox"
	"agentsh/internal/tarfs"
)

// Apply sends a plan into a sandbox: one archive for /sandbox, and one for /tmp
// if the plan has entries there. No entry of an archive appears before the
// whole archive has arrived. A host file that changed since it was planned is
// an error.
func Apply(ctx context.Context, ex sandbox.Executor, p Plan) error {
	for _, root := range []string{layout.Sandbox, tmp} {
		part := below(p.Entries, root)
		if len(part) == 0 {
			continue
		}
		if err := send(ctx, ex, root, Plan{Entries: part, limits: p.limits, objects: p.objects}); err != nil {
			return fmt.Errorf("fill %s: %w", root, err)
		}
	}
	return nil
}

// below returns the entries below a directory. They are one part of the sorted list.
func below(entries []Entry, dir string) []Entry {
	least := func(dest string) int {
		return sort.Search(len(entries), func(i int) bool { return entries[i].Dest >= dest })
	}
	const next = string('/' + 1)
	return entries[least(dir+"/"):least(dir+next)]
}

// send streams the entries below root and compares what arrived.
func send(ctx context.Context, ex sandbox.Executor, root string, p Plan) error {
	r, w := io.Pipe()
	packed := make(chan error, 1)
	var sums []string // SHA-256 of each sent file, in the order of entries
	go func() {
		// Headers and padding are small writes. The receiver accepts large ones.
		coalesced := bufio.NewWriterSize(w, 256<<10)
		var err error
		if sums, err = p.write(ctx, root, coalesced); err == nil {
			err = coalesced.Flush()
		}
		_ = w.CloseWithError(err) // never fails; without an error it is the end
		packed <- err
	}()
	m, err := ex.CopyIn(ctx, root, r)
	_ = r.CloseWithError(io.ErrClosedPipe) // ends the writer if the sandbox stopped reading
	if local := <-packed; local != nil && !errors.Is(local, io.ErrClosedPipe) {
		return local // the error of the sandbox is only a consequence
	}
	if err != nil {
		return err
	}
	if len(m.Entries) != len(p.Entries) {
		return fmt.Errorf("%d of %d entries arrived", len(m.Entries), len(p.Entries))
	}
	for i, e := range p.Entries {
		got := m.Entries[i]
		if root+"/"+string(got.Path) != e.Dest || got.Type != e.Kind || got.SHA256 != sums[i] {
			return fmt.Errorf("%s arrived as %.200q %s %s", e.Dest, got.Path, got.Type, got.SHA256)
		}
	}
	return nil
}

// write packs the entries with names relative to root. It returns the SHA-256
// of each entry that is a file.
func (p Plan) write(ctx context.Context, root string, to io.Writer) (sums []string, err error) {
	blobs, err := p.openBlobs(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = blobs.Close() }() // an error after the last object does not matter
	w := tarfs.NewWriter(to, p.limits)
	sums = make([]string, len(p.Entries))
	for i, e := range p.Entries {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		name := strings.TrimPrefix(e.Dest, root+"/")
		var err error
		switch {
		case e.Kind == KindDir:
			err = w.Dir(name, e.Mode)
		case e.Kind == KindSymlink:
			err = w.Symlink(name, e.Target)
		case e.blob != "":
			sums[i], err = blobs.write(w, name, e)
		default:
			sums[i], err = e.SHA256, writeFile(w, name, e)
		}
		if err != nil {
			return nil, err
		}
	}
	_, err = w.Close()
	return sums, err
}

// blobs are the objects of a plan in the order of its entries.
type blobs struct {
	io.Closer
	r *bufio.Reader
}

func (p Plan) openBlobs(ctx context.Context) (blobs, error) {
	var ids []string
	for _, e := range p.Entries {
		if e.Kind == KindFile && e.blob != "" {
			ids = append(ids, e.blob)
		}
	}
	if len(ids) == 0 {
		return blobs{io.NopCloser(nil), nil}, nil
	}
	r, err := p.objects(ctx, ids)
	if err != nil {
		return blobs{}, fmt.Errorf("read objects: %w", err)
	}
	return blobs{r, bufio.NewReaderSize(r, 256<<10)}, nil
}

// write packs the next object, which must be the object of e. See git-cat-
// file(1), BATCH OUTPUT.
func (b blobs) write(w *tarfs.Writer, name string, e Entry) (string, error) {
	head, err := b.r.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("read object %s of %s: %w", e.blob, name, err)
	}
	if want := fmt.Sprintf("%s blob %d\n", e.blob, e.Size); head != want {
		return "", fmt.Errorf("read object of %s: got %q, want %q", name, head, want)
	}
	sum, err := w.File(name, e.Mode, e.Size, io.LimitReader(b.r, e.Size))
	if err != nil {
		return "", err
	}
	if end, err := b.r.ReadByte(); err != nil || end != '\n' {
		return "", errors.Join(fmt.Errorf("read object %s of %s: it does not end", e.blob, name), err)
	}
	return sum, nil
}

// writeFile packs one file and compares it with the plan.
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
