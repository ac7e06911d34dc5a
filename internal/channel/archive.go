package channel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"agentsh/internal/tarfs"
	"agentsh/internal/wire"
)

// ArchiveSource is a session that sends files as an archive of package tarfs, see
// [Client.CopyOut].
type ArchiveSource interface {
	CopyOut(ctx context.Context, req wire.CopyOut, w io.Writer) error
}

// ArchiveTarget says where [ReceiveArchive] unpacks an archive.
type ArchiveTarget struct {
	Parent  *os.Root
	Name    string // of the directory made in Parent, see [tarfs.Receive]
	Options tarfs.ReceiveOptions
}

// maxTrailer is the number of bytes that may follow the manifest of an archive. An
// archive ends with up to 10 KiB of zeros.
const maxTrailer = 1 << 20

var errTrailer = fmt.Errorf("more than %d bytes follow the manifest of the archive", maxTrailer)

// ReceiveArchive copies files of a session into a new directory. The directory appears
// only if the archive arrived complete. If the session and the archive both return an
// error, ReceiveArchive returns that of the session.
func ReceiveArchive(ctx context.Context, from ArchiveSource, req wire.CopyOut, to ArchiveTarget) (wire.Manifest, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, w := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		err := from.CopyOut(ctx, req, w)
		_ = w.CloseWithError(err) // never fails; with a nil error it ends the stream
		sent <- err
	}()
	m, err := tarfs.Receive(ctx, to.Parent, to.Name, r, to.Options)
	if err != nil {
		cancel()
	}
	// Bytes after the manifest have no meaning, and too many of them end the operation.
	if _, more := io.CopyN(io.Discard, r, maxTrailer); more == nil {
		cancel()
		_ = r.CloseWithError(errTrailer) // never fails
	}
	failed := <-sent
	if err != nil && failed != nil && !errors.Is(failed, context.Canceled) {
		return m, failed
	}
	return m, err // the manifest matched, so the archive is complete despite a later error
}
