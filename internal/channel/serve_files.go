package channel

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"golang.org/x/crypto/ssh"

	"agentsh/internal/tarfs"
	"agentsh/internal/wire"
)

// Files performs the operations of the files channel. Paths are absolute and inside
// the sandbox. Methods are called concurrently.
type Files interface {
	Stat(ctx context.Context, path string) (wire.FileInfo, error)
	List(ctx context.Context, path string) ([]wire.FileInfo, error)
	// Read writes the bytes of the range to w.
	Read(ctx context.Context, r wire.ReadRange, w io.Writer) (wire.FileInfo, error)
	WriteFile(ctx context.Context, f wire.WriteFile, r io.Reader) (wire.FileInfo, error)
	Mkdir(ctx context.Context, path string, mode fs.FileMode) error
	Remove(ctx context.Context, path string, recursive bool) error
	CopyIn(ctx context.Context, dest string, archive io.Reader) (wire.Manifest, error)
	CopyOut(ctx context.Context, req wire.CopyOut, w io.Writer) (wire.Manifest, error)
}

// serveFiles serves one file operation. It reads the request and, for some operations,
// a body. Then it writes the bytes, the listing and the reply.
func (s *Server) serveFiles(ctx context.Context, ch ssh.Channel, reqs <-chan *ssh.Request, extra []byte) {
	ctx, cancel := context.WithCancel(ctx)
	s.wg.Go(func() { watch(cancel, reqs) })
	defer cancel()
	var req wire.FileRequest
	var reply wire.FileReply
	var listing any
	w := bufio.NewWriter(ch)
	out := newBodyWriter(w)
	err := readFirst(extra, ch, &req)
	if err == nil {
		reply.Info, listing, err = s.file(ctx, req, &bodyReader{r: bufio.NewReader(ch)}, out)
	}
	reply.Error = asWireError(err)
	if finish(w, out, listing, reply) == nil {
		_ = w.Flush() // a disconnected client reads no reply
	}
}

// finish ends the bytes of an operation and writes its listing and reply.
func finish(w io.Writer, out *bodyWriter, listing any, reply wire.FileReply) error {
	if err := out.end(); err != nil {
		return err
	}
	if listing != nil && reply.Error == nil {
		if err := writeListing(out, listing); err != nil {
			return err
		}
	}
	if err := out.end(); err != nil {
		return err
	}
	return writeFrame(w, reply)
}

// writeListing writes a listing as JSON. It encodes a list entry by entry: a change
// record may have many.
func writeListing(w io.Writer, listing any) error {
	switch list := listing.(type) {
	case []wire.Change:
		return writeList(w, list)
	case []wire.FileInfo:
		return writeList(w, list)
	case []wire.HistoryEntry:
		return writeList(w, list)
	}
	return json.NewEncoder(w).Encode(listing)
}

func writeList[T any](w io.Writer, list []T) error {
	encoder, mark := json.NewEncoder(w), "["
	for i := range list {
		if _, err := io.WriteString(w, mark); err != nil {
			return err
		}
		if err := encoder.Encode(&list[i]); err != nil {
			return err
		}
		mark = ","
	}
	if len(list) == 0 {
		_, err := io.WriteString(w, "[]\n")
		return err
	}
	_, err := io.WriteString(w, "]\n")
	return err
}

// file performs one operation. The listing is nil if the operation has none.
func (s *Server) file(ctx context.Context, req wire.FileRequest, in io.Reader, out io.Writer) (*wire.FileInfo, any, error) {
	files := s.cfg.Handler.Files()
	switch {
	case req.Op == wire.OpStat:
		info, err := files.Stat(ctx, string(req.Path))
		return &info, nil, err
	case req.Op == wire.OpList:
		list, err := files.List(ctx, string(req.Path))
		return nil, list, err
	case req.Op == wire.OpRead && req.Read != nil:
		info, err := files.Read(ctx, *req.Read, out)
		return &info, nil, err
	case req.Op == wire.OpWrite && req.Write != nil:
		info, err := files.WriteFile(ctx, *req.Write, in)
		return &info, nil, err
	case req.Op == wire.OpMkdir:
		return nil, nil, files.Mkdir(ctx, string(req.Path), fs.FileMode(req.Mode))
	case req.Op == wire.OpRemove:
		return nil, nil, files.Remove(ctx, string(req.Path), req.Recursive)
	case req.Op == wire.OpCopyIn:
		m, err := files.CopyIn(ctx, string(req.Path), in)
		return nil, m, err
	case req.Op == wire.OpCopyOut && req.Out != nil:
		if req.Out.Listed {
			if err := readNames(in, req.Out); err != nil {
				return nil, nil, err
			}
		}
		m, err := files.CopyOut(ctx, *req.Out, out)
		return nil, m, err
	case req.Op == wire.OpChanges:
		changes, err := s.cfg.Handler.Changes(ctx)
		return nil, changes, err
	case req.Op == wire.OpHistory && req.History != nil:
		if h, ok := s.cfg.Handler.(Historian); ok {
			list, err := h.History(ctx, *req.History)
			return nil, list, err
		}
	case req.Op == wire.OpRecovery && req.Recovery != nil:
		if k, ok := s.cfg.Handler.(Recoverer); ok {
			if req.Recovery.Freeze {
				defer s.freezes.begin()()
				return nil, nil, k.Freeze(ctx, in, atOnce{out})
			}
			return nil, nil, k.Recover(ctx, *req.Recovery)
		}
	}
	return nil, nil, &wire.Error{Code: wire.CodeUnsupported, Message: fmt.Sprintf("file operation %.64q is not offered", req.Op)}
}

// atOnce is the body of an operation whose data the client needs before it can
// continue.
type atOnce struct{ io.Writer }

func (a atOnce) Write(p []byte) (int, error) {
	n, err := a.Writer.Write(p)
	if b, ok := a.Writer.(*bodyWriter); ok && err == nil {
		err = b.flush()
		if w, ok := b.w.(*bufio.Writer); ok && err == nil {
			err = w.Flush()
		}
	}
	return n, err
}

// asWireError adds the error code that the client distinguishes.
func asWireError(err error) *wire.Error {
	if err == nil {
		return nil
	}
	e := &wire.Error{Code: wire.CodeInternal, Message: clip(err.Error())}
	var known *wire.Error
	switch {
	case errors.As(err, &known):
		e.Code = known.Code
	case errors.Is(err, fs.ErrNotExist):
		e.Code = wire.CodeNotFound
	case errors.Is(err, fs.ErrExist):
		e.Code = wire.CodeExists
	case errors.Is(err, fs.ErrPermission):
		e.Code = wire.CodePermission
	case errors.Is(err, tarfs.ErrLimit):
		e.Code = wire.CodeLimit
	case errors.Is(err, tarfs.ErrRefused):
		e.Code = wire.CodeRefused
	}
	return e
}
