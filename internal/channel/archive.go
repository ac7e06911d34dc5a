package channel

import (
	"context"
	"errors"
	"io"
	"os"

	"agentsh/internal/tarfs"
	"agentsh/internal/wire"
)

// ArchiveSource is a session that sends files as an archive of package tarfs, see
// [Client.CopyOut].
type ArchiveSource interface {
	CopyOut(ctx context.Context, req wire.CopyOut, w io.Writer) (wire.Manifest, error)
}

// ArchiveTarget says where [ReceiveArchive] unpacks an archive.
type ArchiveTarget struct {
	Parent  *os.Root
	Name    string // of the directory made in Parent, see [tarfs.Receive]
	Options tarfs.ReceiveOptions
}

// ReceiveArchive copies files of a session into a new directory. The directory appears
// only if the archive arrived complete. If the session and the archive both return an
// error, ReceiveArchive returns that of the session.
func ReceiveArchive(ctx context.Context, from ArchiveSource, req wire.CopyOut, to ArchiveTarget) (wire.Manifest, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, w := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		_, err := from.CopyOut(ctx, req, w)
		_ = w.CloseWithError(err) // never fails; with a nil error it ends the stream
		sent <- err
	}()
	m, err := tarfs.Receive(ctx, to.Parent, to.Name, r, to.Options)
	if err != nil {
		cancel()
	}
	_, _ = io.Copy(io.Discard, r) // bytes after the manifest have no meaning
	failed := <-sent
	if err != nil && failed != nil && !errors.Is(failed, context.Canceled) {
		return m, failed
	}
	return m, err // the manifest matched, so the archive is complete despite a later error
}
