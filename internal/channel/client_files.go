package channel

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"agentsh/internal/wire"
)

// Limits of a directory listing, a change record, a manifest or the names of a copy.
const (
	maxListing = 256 << 20 // bytes
	maxEntries = 1 << 20   // as many as a change record has
	maxEntry   = 64 << 10  // bytes of one entry
	maxPadding = 1 << 10   // bytes after a list, which ends with a newline
)

// Stat describes one file. It does not follow a symbolic link at the end of the path.
func (c *Client) Stat(ctx context.Context, name string) (wire.FileInfo, error) {
	info, err := c.file(ctx, wire.FileRequest{Op: wire.OpStat, Path: wire.Name(name)}, body{})
	return info, wrap("stat", name, err)
}

// List describes the entries of a directory, sorted by name.
func (c *Client) List(ctx context.Context, name string) ([]wire.FileInfo, error) {
	var list []wire.FileInfo
	_, err := c.file(ctx, wire.FileRequest{Op: wire.OpList, Path: wire.Name(name)}, body{listing: entries(collect(&list))})
	return list, wrap("list", name, err)
}

// Read writes bytes of a regular file to w and returns a description of the file.
func (c *Client) Read(ctx context.Context, r wire.ReadRange, w io.Writer) (wire.FileInfo, error) {
	if r.Length > 0 { // the server may send more than it was asked for
		w = &atMost{w: w, left: r.Length}
	}
	info, err := c.file(ctx, wire.FileRequest{Op: wire.OpRead, Read: &r}, body{out: w})
	return info, wrap("read", string(r.Path), err)
}

// atMost fails after a number of bytes. Without w, these are dropped.
type atMost struct {
	w    io.Writer
	left int64
}

func (a *atMost) Write(p []byte) (int, error) {
	if a.left -= int64(len(p)); a.left < 0 {
		return 0, &wire.Error{Code: wire.CodeLimit, Message: "the supervisor sent more bytes than it was asked for"}
	}
	if a.w == nil {
		return len(p), nil
	}
	return a.w.Write(p)
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
// necessary. Nothing changes unless the archive is complete. arrived is called with
// each entry that was unpacked, in the order of the archive. If the server refuses
// early, a goroutine reads archive until its next Read returns.
func (c *Client) CopyIn(ctx context.Context, dest string, archive io.Reader, arrived func(wire.ManifestEntry) error) error {
	b := body{in: archive, listing: manifest(arrived)}
	_, err := c.file(ctx, wire.FileRequest{Op: wire.OpCopyIn, Path: wire.Name(dest)}, b)
	return wrap("copy into", dest, err)
}

// CopyOut writes an archive of package tarfs to w. If it returns an error, the written
// archive has no manifest at its end.
func (c *Client) CopyOut(ctx context.Context, req wire.CopyOut, w io.Writer) error {
	b := body{out: w, listing: drop} // the archive has the same manifest
	if names := newNames(req); names != nil {
		b.in = names
		req.Paths, req.Names, req.Deleted, req.Listed = nil, nil, nil, true
	}
	_, err := c.file(ctx, wire.FileRequest{Op: wire.OpCopyOut, Out: &req}, b)
	return wrap("copy out of", string(req.Dir), err)
}

// Changes returns the change record of the governed directories.
func (c *Client) Changes(ctx context.Context) ([]wire.Change, error) {
	var list []wire.Change
	err := c.EachChange(ctx, collect(&list))
	return list, err
}

// EachChange calls fn with each entry of the change record, sorted by path.
func (c *Client) EachChange(ctx context.Context, fn func(wire.Change) error) error {
	_, err := c.file(ctx, wire.FileRequest{Op: wire.OpChanges}, body{listing: entries(fn)})
	return wrap("changes", "", err)
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
		freeze := wire.FileRequest{Op: wire.OpRecovery, Recovery: &wire.RecoveryRequest{Freeze: true}}
		_, err := c.file(ctx, freeze, body{in: in, out: frozen, untimed: true})
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
	in      io.Reader             // to the server
	out     io.Writer             // from the server
	listing func(io.Reader) error // reads JSON from the server; nil: it is discarded
	untimed bool                  // the client decides when the operation ends
}

// file performs one file operation on its own channel.
func (c *Client) file(ctx context.Context, req wire.FileRequest, b body) (wire.FileInfo, error) {
	l, err := c.open(ctx, typeFiles, req, nil)
	if err != nil {
		return wire.FileInfo{}, err
	}
	defer l.close()
	defer l.closeAfter(ctx)()
	pace := &pace{link: l, start: time.Now()}
	if !b.untimed {
		defer pace.begin()()
	}
	in := &noted{Reader: b.in, moved: &pace.moved}
	if b.in != nil {
		go send(l.ch, in) // ends with the channel and b.in
	}
	info, err := receive(&countReader{l, &pace.moved}, b)
	if err == nil {
		return info, nil
	}
	switch own := in.err.Load(); {
	case own != nil: // explains more than the error of the server
		return wire.FileInfo{}, *own
	case ctx.Err() != nil: // its end has closed the link
		return wire.FileInfo{}, ctx.Err()
	case pace.late.Load():
		err = errLate
	}
	return wire.FileInfo{}, c.cause(err)
}

// Time limits of one file operation.
const (
	fileWait = 5 * time.Minute // for an operation that moves nothing
	fileRate = 1 << 20         // bytes in either direction that are worth one more second
)

var errLate = fmt.Errorf("the supervisor took longer than %s and one second for each MiB", fileWait)

// pace closes the link of a file operation that takes too long.
type pace struct {
	link  *link
	start time.Time
	moved atomic.Int64 // bytes
	late  atomic.Bool
}

// begin starts the limit. The caller calls stop.
func (p *pace) begin() (stop func()) {
	var mu sync.Mutex
	var timer *time.Timer
	ended := false
	var check func()
	check = func() {
		mu.Lock()
		defer mu.Unlock()
		left := time.Until(p.start.Add(fileWait + time.Duration(p.moved.Load()/fileRate)*time.Second))
		switch {
		case ended:
		case left <= 0:
			p.late.Store(true)
			p.link.close()
		default:
			timer = time.AfterFunc(left, check)
		}
	}
	check()
	return func() {
		mu.Lock()
		defer mu.Unlock()
		ended = true
		timer.Stop()
	}
}

// noted records the error of a reader and counts its bytes.
type noted struct {
	io.Reader
	err   atomic.Pointer[error]
	moved *atomic.Int64
}

func (n *noted) Read(p []byte) (int, error) {
	read, err := n.Reader.Read(p)
	n.moved.Add(int64(read))
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
		out = &atMost{}
	}
	if _, err := copyStream(out, &bodyReader{r: r}); err != nil {
		return wire.FileInfo{}, err
	}
	listing := &listing{r: &bodyReader{r: r}, left: maxListing}
	var missing error // the reply explains why there is no listing
	if b.listing != nil {
		if err := b.listing(listing); errors.Is(err, io.EOF) {
			missing = err
		} else if err != nil {
			return wire.FileInfo{}, fmt.Errorf("listing: %w", err)
		}
	}
	if _, err := copyStream(&atMost{left: maxPadding}, listing); err != nil {
		return wire.FileInfo{}, err
	}
	var reply wire.FileReply
	if err := readFrame(r, &reply); err != nil {
		return wire.FileInfo{}, noEOF(err)
	}
	if reply.Error != nil {
		return wire.FileInfo{}, reply.Error
	}
	if missing != nil {
		return wire.FileInfo{}, fmt.Errorf("listing: %w", missing)
	}
	if reply.Info == nil {
		return wire.FileInfo{}, nil
	}
	return *reply.Info, nil
}

// listing reads a listing up to its limit.
type listing struct {
	r    io.Reader
	left int
}

func (l *listing) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if l.left -= n; l.left < 0 {
		return 0, &wire.Error{Code: wire.CodeLimit, Message: fmt.Sprintf("listing has more than %d bytes", maxListing)}
	}
	return n, err
}

// drop reads a listing that nobody needs.
func drop(r io.Reader) error {
	_, err := copyStream(io.Discard, r)
	return err
}

// collect returns a function that appends its argument to a list.
func collect[T any](to *[]T) func(T) error {
	return func(e T) error {
		*to = append(*to, e)
		return nil
	}
}

// entries decodes a listing that is a list, and calls fn with each entry. It fails for
// too many entries and for an entry that is too long.
func entries[T any](fn func(T) error) func(io.Reader) error {
	return func(r io.Reader) error { return eachOf(r, maxEntry, fn) }
}

// eachOf decodes a listing whose entries have at most a number of bytes.
func eachOf[T any](r io.Reader, most int, fn func(T) error) error {
	one := &atMostReader{r: r, left: most, most: most}
	return list(json.NewDecoder(one), one, fn)
}

// list decodes the next list of d, which reads from one.
func list[T any](d *json.Decoder, one *atMostReader, fn func(T) error) error {
	if t, err := d.Token(); err != nil || t == nil { // a list without entries may be null
		return err
	} else if t != json.Delim('[') {
		return fmt.Errorf("it begins with %v, not with a list", t)
	}
	for n := 0; d.More(); n++ {
		if n == maxEntries {
			return &wire.Error{Code: wire.CodeLimit, Message: fmt.Sprintf("listing has more than %d entries", maxEntries)}
		}
		var e T
		one.left = one.most
		if err := d.Decode(&e); err != nil {
			return err
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}

// manifest decodes a manifest as entries does, and calls fn with each entry. It drops
// the other lists.
func manifest(fn func(wire.ManifestEntry) error) func(io.Reader) error {
	return func(r io.Reader) error {
		one := &atMostReader{r: r, left: maxEntry, most: maxEntry}
		d := json.NewDecoder(one)
		if t, err := d.Token(); err != nil || t != json.Delim('{') {
			return errors.Join(fmt.Errorf("it begins with %v, not with a manifest", t), err)
		}
		for d.More() {
			one.left = maxEntry
			key, err := d.Token()
			if err != nil {
				return err
			}
			switch key {
			case "entries":
				err = list(d, one, fn)
			case "deleted", "skipped":
				err = list(d, one, func(json.RawMessage) error { return nil })
			default:
				var newer json.RawMessage // of a later minor version
				one.left = maxEntry
				err = d.Decode(&newer)
			}
			if err != nil {
				return err
			}
		}
		_, err := d.Token()
		return err
	}
}

// atMostReader fails after a number of bytes.
type atMostReader struct {
	r    io.Reader
	left int
	most int // of one entry
}

func (a *atMostReader) Read(p []byte) (int, error) {
	if a.left <= 0 {
		return 0, &wire.Error{Code: wire.CodeLimit, Message: fmt.Sprintf("an entry of a listing has more than %d bytes", a.most)}
	}
	n, err := a.r.Read(p[:min(len(p), a.left)])
	a.left -= n
	return n, err
}
