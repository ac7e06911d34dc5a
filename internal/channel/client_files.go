package channel

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"sync/atomic"

	"golang.org/x/crypto/ssh"

	"agentsh/internal/wire"
)

// maxListing bounds what a list, a change record or a manifest may take in
// memory, in bytes.
const maxListing = 64 << 20

// Stat describes one file and does not follow a symbolic link at its end.
func (c *Client) Stat(ctx context.Context, name string) (wire.FileInfo, error) {
	info, err := c.file(ctx, wire.FileRequest{Op: wire.OpStat, Path: wire.Name(name)}, body{})
	return info, wrap("stat", name, err)
}

// List describes what a directory holds, sorted by name.
func (c *Client) List(ctx context.Context, name string) ([]wire.FileInfo, error) {
	var list []wire.FileInfo
	_, err := c.file(ctx, wire.FileRequest{Op: wire.OpList, Path: wire.Name(name)}, body{listing: &list})
	return list, wrap("list", name, err)
}

// Read writes bytes of a regular file to w and returns what the file is.
func (c *Client) Read(ctx context.Context, r wire.ReadRange, w io.Writer) (wire.FileInfo, error) {
	info, err := c.file(ctx, wire.FileRequest{Op: wire.OpRead, Read: &r}, body{out: w})
	return info, wrap("read", string(r.Path), err)
}

// ReadFile reads a regular file of at most limit bytes.
func (c *Client) ReadFile(ctx context.Context, name string, limit int64) ([]byte, error) {
	var b bytes.Buffer
	info, err := c.Read(ctx, wire.ReadRange{Path: wire.Name(name), Length: limit + 1}, &b)
	if err != nil {
		return nil, err
	}
	if int64(b.Len()) > limit {
		return nil, &wire.Error{Code: wire.CodeLimit, Message: fmt.Sprintf("read %s: %d bytes, at most %d", name, info.Size, limit)}
	}
	return b.Bytes(), nil
}

// Write replaces a file by what r holds: a reader sees the old content or the
// new, never a part. What r's error cut off is not written.
func (c *Client) Write(ctx context.Context, f wire.WriteFile, r io.Reader) (wire.FileInfo, error) {
	info, err := c.file(ctx, wire.FileRequest{Op: wire.OpWrite, Write: &f}, body{in: r})
	return info, wrap("write", string(f.Path), err)
}

// WriteFile replaces a file by data.
func (c *Client) WriteFile(ctx context.Context, name string, data []byte, mode fs.FileMode) error {
	_, err := c.Write(ctx, wire.WriteFile{Path: wire.Name(name), Mode: uint32(mode.Perm())}, bytes.NewReader(data))
	return err
}

// Mkdir makes a directory and what is missing above it.
func (c *Client) Mkdir(ctx context.Context, name string, mode fs.FileMode) error {
	_, err := c.file(ctx, wire.FileRequest{Op: wire.OpMkdir, Path: wire.Name(name), Mode: uint32(mode.Perm())}, body{})
	return wrap("mkdir", name, err)
}

// Remove removes a file or directory; a directory with content only when
// recursive.
func (c *Client) Remove(ctx context.Context, name string, recursive bool) error {
	_, err := c.file(ctx, wire.FileRequest{Op: wire.OpRemove, Path: wire.Name(name), Recursive: recursive}, body{})
	return wrap("remove", name, err)
}

// CopyIn unpacks an archive of package tarfs below dest, which is made when it
// is missing. Nothing changes unless the archive is whole. After an early
// refusal a goroutine reads archive until its next Read returns.
func (c *Client) CopyIn(ctx context.Context, dest string, archive io.Reader) (wire.Manifest, error) {
	var m wire.Manifest
	_, err := c.file(ctx, wire.FileRequest{Op: wire.OpCopyIn, Path: wire.Name(dest)}, body{in: archive, listing: &m})
	return m, wrap("copy into", dest, err)
}

// CopyOut writes an archive of package tarfs to w. What was written before an
// error has no manifest at its end.
func (c *Client) CopyOut(ctx context.Context, req wire.CopyOut, w io.Writer) (wire.Manifest, error) {
	var m wire.Manifest
	_, err := c.file(ctx, wire.FileRequest{Op: wire.OpCopyOut, Out: &req}, body{out: w, listing: &m})
	return m, wrap("copy out of", string(req.Dir), err)
}

// Changes is the change record of the governed directories.
func (c *Client) Changes(ctx context.Context) ([]wire.Change, error) {
	var list []wire.Change
	_, err := c.file(ctx, wire.FileRequest{Op: wire.OpChanges}, body{listing: &list})
	return list, wrap("changes", "", err)
}

// Recover asks about what the session keeps for its user.
func (c *Client) Recover(ctx context.Context, r wire.RecoveryRequest) error {
	_, err := c.file(ctx, wire.FileRequest{Op: wire.OpRecovery, Recovery: &r}, body{})
	return wrap("keep", "", err)
}

// freezes counts the freezes of a connection. While there is one, neither side takes
// silence for the end of the other: a client that is stopped during a rollback goes on
// with it later, and the files must still be frozen then. A freeze that ended because
// of an error closes the connection.
type freezes struct{ n atomic.Int32 }

func (f *freezes) any() bool { return f.n.Load() > 0 }

func (f *freezes) begin() (end func()) {
	f.n.Add(1)
	return func() { f.n.Add(-1) }
}

// Freeze has the session freeze its files. ended is closed when they are not frozen any
// more. unfreeze ends the freeze and reports what was written behind the mounts; it
// must be called.
func (c *Client) Freeze(ctx context.Context) (ended <-chan struct{}, unfreeze func([]wire.Change) error, err error) {
	in, report := io.Pipe()
	frozen := &signal{given: make(chan struct{})}
	done := make(chan struct{})
	var failed error // set before done is closed
	end := c.freezes.begin()
	go func() { // unfreeze waits for it, or the failure below
		_, err := c.file(ctx, wire.FileRequest{Op: wire.OpRecovery, Recovery: &wire.RecoveryRequest{Freeze: true}}, body{in: in, out: frozen})
		end()
		_ = in.CloseWithError(io.ErrClosedPipe) // unfreeze must not wait for a reader
		failed = wrap("freeze", "", err)
		close(done)
	}()
	select {
	case <-frozen.given:
	case <-done:
		return nil, nil, errors.Join(failed, report.Close())
	}
	return done, func(list []wire.Change) error {
		err := json.NewEncoder(report).Encode(append([]wire.Change{}, list...))
		_ = report.Close() // never fails
		<-done
		return errors.Join(err, failed)
	}, nil
}

// signal is a writer whose first write closes a channel.
type signal struct {
	once  sync.Once
	given chan struct{}
}

func (s *signal) Write(p []byte) (int, error) {
	s.once.Do(func() { close(s.given) })
	return len(p), nil
}

func wrap(op, name string, err error) error {
	if err == nil {
		return nil
	}
	if name != "" {
		op += " " + name
	}
	return fmt.Errorf("%s: %w", op, err)
}

// body is what goes along with one file operation.
type body struct {
	in      io.Reader // to the server
	out     io.Writer // from the server
	listing any       // from the server, as JSON
}

// file does one file operation on a channel of its own.
func (c *Client) file(ctx context.Context, req wire.FileRequest, b body) (wire.FileInfo, error) {
	ch, reqs, err := c.open(ctx, typeFiles, req)
	if err != nil {
		return wire.FileInfo{}, err
	}
	go ssh.DiscardRequests(reqs)      // ends with the channel
	defer func() { _ = ch.Close() }() // the server closed it, or it has to be
	stop := context.AfterFunc(ctx, func() { _ = ch.Close() })
	defer stop()
	in := &noted{Reader: b.in}
	if b.in != nil {
		go send(ch, in) // ends with the channel and b.in
	}
	info, err := receive(bufio.NewReader(ch), b)
	if err == nil {
		return info, nil
	}
	if own := in.err.Load(); own != nil { // explains more than what the server says of it
		return wire.FileInfo{}, *own
	}
	return wire.FileInfo{}, c.cause(errors.Join(err, ctx.Err()))
}

// noted remembers the error of a reader.
type noted struct {
	io.Reader
	err atomic.Pointer[error]
}

func (n *noted) Read(p []byte) (int, error) {
	read, err := n.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		n.err.Store(&err)
	}
	return read, err
}

// send writes a whole body. When in fails the server is informed, undoes what it
// did and answers. A write fails only when the server has answered or is gone.
func send(ch ssh.Channel, in *noted) {
	w := newBodyWriter(ch)
	_, err := copyStream(w, in)
	switch {
	case err == nil:
		_ = w.end()
	case in.err.Load() != nil:
		_ = w.abort()
	}
}

// receive reads the bytes, the listing and the reply of an operation.
func receive(r io.Reader, b body) (wire.FileInfo, error) {
	out := b.out
	if out == nil {
		out = io.Discard
	}
	if _, err := copyStream(out, &bodyReader{r: r}); err != nil {
		return wire.FileInfo{}, err
	}
	listing, err := io.ReadAll(io.LimitReader(&bodyReader{r: r}, maxListing+1))
	if err != nil {
		return wire.FileInfo{}, err
	}
	if len(listing) > maxListing {
		return wire.FileInfo{}, &wire.Error{Code: wire.CodeLimit, Message: fmt.Sprintf("listing has more than %d bytes", maxListing)}
	}
	var reply wire.FileReply
	if err := readFrame(r, &reply); err != nil {
		return wire.FileInfo{}, noEOF(err)
	}
	if reply.Error != nil {
		return wire.FileInfo{}, reply.Error
	}
	if b.listing != nil {
		if err := json.Unmarshal(listing, b.listing); err != nil {
			return wire.FileInfo{}, fmt.Errorf("listing: %w", err)
		}
	}
	if reply.Info == nil {
		return wire.FileInfo{}, nil
	}
	return *reply.Info, nil
}
