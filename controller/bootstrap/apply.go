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
	"sync"

	"agentsh/internal/layout"

	"agentsh/controller/sandbox"
	"agentsh/internal/tarfs"
	"agentsh/internal/wire"
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
	var sums sums
	go func() {
		// Headers and padding are small writes. The receiver accepts large ones.
		coalesced := bufio.NewWriterSize(w, 256<<10)
		var err error
		if err = p.write(ctx, root, coalesced, &sums); err == nil {
			err = coalesced.Flush()
		}
		_ = w.CloseWithError(err) // never fails; without an error it is the end
		packed <- err
	}()
	arrived := 0
	err := ex.CopyIn(ctx, root, r, func(got wire.ManifestEntry) error {
		arrived++
		if arrived > len(p.Entries) {
			return fmt.Errorf("more than %d entries arrived", len(p.Entries))
		}
		e := p.Entries[arrived-1]
		if root+"/"+string(got.Path) != e.Dest || got.Type != e.Kind || !sums.have(arrived-1, got.SHA256) {
			return fmt.Errorf("%s arrived as %.200q %s %s", e.Dest, got.Path, got.Type, got.SHA256)
		}
		return nil
	})
	_ = r.CloseWithError(io.ErrClosedPipe) // ends the writer if the sandbox stopped reading
	if local := <-packed; local != nil && !errors.Is(local, io.ErrClosedPipe) {
		return local // the error of the sandbox is only a consequence
	}
	if err != nil {
		return err
	}
	if arrived != len(p.Entries) {
		return fmt.Errorf("%d of %d entries arrived", arrived, len(p.Entries))
	}
	return nil
}

// sums are the SHA-256 of each entry that was packed; of a file only.
type sums struct {
	mu   sync.Mutex
	list []wire.Digest
}

func (s *sums) add(sum wire.Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, sum)
}

// have reports whether an entry was packed with a sum.
func (s *sums) have(i int, sum wire.Digest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return i < len(s.list) && s.list[i] == sum
}

// write packs the entries with names relative to root, and adds their sums.
func (p Plan) write(ctx context.Context, root string, to io.Writer, sums *sums) error {
	blobs, err := p.openBlobs(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = blobs.Close() }() // an error after the last object does not matter
	w := tarfs.NewWriter(to, p.limits)
	for _, e := range p.Entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		name := strings.TrimPrefix(e.Dest, root+"/")
		var sum wire.Digest
		var err error
		switch {
		case e.Kind == KindDir:
			err = w.Dir(name, e.Mode)
		case e.Kind == KindSymlink:
			err = w.Symlink(name, e.Target)
		case e.blob != "":
			sum, err = blobs.write(w, name, e)
		default:
			sum, err = writeFile(w, name, e)
		}
		if err != nil {
			return err
		}
		sums.add(sum)
	}
	_, err = w.Close()
	return err
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
func (b blobs) write(w *tarfs.Writer, name string, e Entry) (sum wire.Digest, err error) {
	head, err := b.r.ReadString('\n')
	if err != nil {
		return sum, fmt.Errorf("read object %s of %s: %w", e.blob, name, err)
	}
	if want := fmt.Sprintf("%s blob %d\n", e.blob, e.Size); head != want {
		return sum, fmt.Errorf("read object of %s: got %q, want %q", name, head, want)
	}
	sum, err = w.File(name, e.Mode, e.Size, io.LimitReader(b.r, e.Size))
	if err != nil {
		return sum, err
	}
	if end, err := b.r.ReadByte(); err != nil || end != '\n' {
		return sum, errors.Join(fmt.Errorf("read object %s of %s: it does not end", e.blob, name), err)
	}
	return sum, nil
}

// writeFile packs one file and compares it with the plan.
func writeFile(w *tarfs.Writer, name string, e Entry) (wire.Digest, error) {
	var content io.Reader = bytes.NewReader(e.data)
	if e.source != "" {
		f, err := e.open()
		if err != nil {
			return wire.Digest{}, err
		}
		defer f.Close()
		content = f
	}
	digest, err := w.File(name, e.Mode, e.Size, content)
	if err != nil {
		return digest, err
	}
	if n, _ := content.Read(make([]byte, 1)); n > 0 || digest.String() != e.SHA256 {
		return digest, fmt.Errorf("%s changed since it was planned", e.Source())
	}
	return digest, nil
}
