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

// maxListing bounds the memory of a list, a change record or a manifest, in bytes.
const maxListing = 64 << 20

// Stat describes one file. It does not follow a symbolic link at the end of the path.
func (c *Client) Stat(ctx context.Context, name string) (wire.FileInfo, error) {
	info, err := c.file(ctx, wire.FileRequest{Op: wire.OpStat, Path: wire.Name(name)}, body{})
	return info, wrap("stat", name, err)
}

// List describes the entries of a directory, sorted by name.
func (c *Client) List(ctx context.Context, name string) ([]wire.FileInfo, error) {
	var list []wire.FileInfo
	_, err := c.file(ctx, wire.FileRequest{Op: wire.OpList, Path: wire.Name(name)}, body{listing: &list})
	return list, wrap("list", name, err)
}

// Read writes bytes of a regular file to w and returns a description of the file.
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

// Write replaces the content of a file by that of r. A reader of the file sees the old
// content or the new content, never a part. If r returns an error, the file stays
// unchanged.
func (c *Client) Write(ctx context.Context, f wire.WriteFile, r io.Reader) (wire.FileInfo, error) {
	info, err := c.file(ctx, wire.FileRequest{Op: wire.OpWrite, Write: &f}, body{in: r})
	return info, wrap("write", string(f.Path), err)
}

// WriteFile replaces a file by data.
func (c *Client) WriteFile(ctx context.Context, name string, data []byte, mode fs.FileMode) error {
	_, err := c.Write(ctx, wire.WriteFile{Path: wire.Name(name), Mode: uint32(mode.Perm())}, bytes.NewReader(data))
	return err
}

// Mkdir makes a directory and its missing parents.
func (c *Client) Mkdir(ctx context.Context, name string, mode fs.FileMode) error {
	_, err := c.file(ctx, wire.FileRequest{Op: wire.OpMkdir, Path: wire.Name(name), Mode: uint32(mode.Perm())}, body{})
	return wrap("mkdir", name, err)
}

// Remove removes a file or directory. It removes a directory that is not empty only if
// recursive is set.
func (c *Client) Remove(ctx context.Context, name string, recursive bool) error {
	_, err := c.file(ctx, wire.FileRequest{Op: wire.OpRemove, Path: wire.Name(name), Recursive: recursive}, body{})
	return wrap("remove", name, err)
}

// CopyIn unpacks an archive of package tarfs below dest, and creates dest if
// necessary. Nothing changes unless the archive is complete. If the server refuses
// early, a goroutine reads archive until its next Read returns.
func (c *Client) CopyIn(ctx context.Context, dest string, archive io.Reader) (wire.Manifest, error) {
	var m wire.Manifest
	_, err := c.file(ctx, wire.FileRequest{Op: wire.OpCopyIn, Path: wire.Name(dest)}, body{in: archive, listing: &m})
	return m, wrap("copy into", dest, err)
}

// CopyOut writes an archive of package tarfs to w. If it returns an error, the written
// archive has no manifest at its end.
func (c *Client) CopyOut(ctx context.Context, req wire.CopyOut, w io.Writer) (wire.Manifest, error) {
	var m wire.Manifest
	_, err := c.file(ctx, wire.FileRequest{Op: wire.OpCopyOut, Out: &req}, body{out: w, listing: &m})
	return m, wrap("copy out of", string(req.Dir), err)
}

// Changes returns the change record of the governed directories.
func (c *Client) Changes(ctx context.Context) ([]wire.Change, error) {
	var list []wire.Change
	_, err := c.file(ctx, wire.FileRequest{Op: wire.OpChanges}, body{listing: &list})
	return list, wrap("changes", "", err)
}

// Recover restores or purges files of the session's trash, or announces paths that were
// written behind the mounts.
func (c *Client) Recover(ctx context.Context, r wire.RecoveryRequest) error {
	_, err := c.file(ctx, wire.FileRequest{Op: wire.OpRecovery, Recovery: &r}, body{})
	return wrap("recover", "", err)
}

// freezes counts the freezes of a connection. During a freeze neither side treats
// silence as the end of the other side. A client may be stopped during a rollback and
// continue it later. The files must still be frozen then. A freeze that ended with an
// error closes the connection.
type freezes struct{ n atomic.Int32 }

func (f *freezes) any() bool { return f.n.Load() > 0 }

func (f *freezes) begin() (end func()) {
	f.n.Add(1)
	return func() { f.n.Add(-1) }
}

// Freeze makes the session freeze its files. ended is closed when the files are no
// longer frozen. unfreeze ends the freeze and reports the changes that were written
// behind the mounts. The caller must call unfreeze.
func (c *Client) Freeze(ctx context.Context) (ended <-chan struct{}, unfreeze func([]wire.Change) error, err error) {
	in, report := io.Pipe()
	frozen := &signal{given: make(chan struct{})}
	done := make(chan struct{})
	var failed error // set before done is closed
	end := c.freezes.begin()
	go func() { // ends in unfreeze, or after the error below
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

// body is the data of one file operation.
type body struct {
	in      io.Reader // to the server
	out     io.Writer // from the server
	listing any       // from the server, as JSON
}

// file performs one file operation on its own channel.
func (c *Client) file(ctx context.Context, req wire.FileRequest, b body) (wire.FileInfo, error) {
	ch, reqs, err := c.open(ctx, typeFiles, req)
	if err != nil {
		return wire.FileInfo{}, err
	}
	go ssh.DiscardRequests(reqs)      // ends with the channel
	defer func() { _ = ch.Close() }() // the server has closed it, or it must be closed here
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
	if own := in.err.Load(); own != nil { // explains more than the error of the server
		return wire.FileInfo{}, *own
	}
	return wire.FileInfo{}, c.cause(errors.Join(err, ctx.Err()))
}

// noted records the error of a reader.
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

// send writes a whole body. If in fails, the server is informed, reverts the operation
// and answers. A write fails only if the server has answered or the connection has
// ended.
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
