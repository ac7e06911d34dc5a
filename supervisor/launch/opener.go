package launch

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// openerTag is the name under which the init hands over the opener's socket.
const openerTag = "opener"

// maxOpenPath is the size of a path in a request, its NUL included. Keep in step
// with opener.c.
const maxOpenPath = 4096

// openTimeout is the maximum time of one open.
const openTimeout = 5 * time.Second

// openerGone is the error of a session whose opener has ended. It wraps no errno, because
// an errno would be the result of the open.
func openerGone(err error) error {
	if err == nil {
		err = errors.New("its answer is malformed")
	}
	return errors.New("the session's opener has ended: " + err.Error())
}

// Opener opens files for commands, in a process of the session that has the rights of a
// command. It is safe for concurrent use.
type Opener struct {
	mu   sync.Mutex
	conn *net.UnixConn
	id   uint64
}

// Opener returns the connection to the opener of a session with Config.Opener. The caller
// closes it. It may be called once.
func (i *Init) Opener() (*Opener, error) {
	f := i.setup.sockets[openerTag]
	if f == nil {
		return nil, errors.New("the session has no opener")
	}
	delete(i.setup.sockets, openerTag)
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("connect to the opener: %w", err)
	}
	return &Opener{conn: conn.(*net.UnixConn)}, nil
}

// Open opens a file for reading as a command would. path is absolute, inside, and without
// symbolic links. flags are those of open(2). If the kernel refuses the open, and only
// then, the error wraps its errno. The caller closes the file.
func (o *Opener) Open(path string, flags int) (*os.File, error) {
	if len(path) >= maxOpenPath {
		return nil, unix.ENAMETOOLONG
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.id++
	q := make([]byte, 16+maxOpenPath)
	order.PutUint64(q, o.id)
	order.PutUint32(q[8:], uint32(flags))
	copy(q[16:], path)
	if err := o.conn.SetDeadline(time.Now().Add(openTimeout)); err != nil {
		return nil, openerGone(err)
	}
	if err := send(o.conn, q); err != nil {
		return nil, openerGone(err)
	}
	for {
		f, id, err := o.reply()
		if id == o.id || id == 0 {
			return f, err
		}
		if f != nil { // of a request that timed out
			f.Close()
		}
	}
}

// reply reads one answer; its id is 0 when there is none.
func (o *Opener) reply() (*os.File, uint64, error) {
	b, oob := make([]byte, 16), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := o.conn.ReadMsgUnix(b, oob)
	if err != nil || n != len(b) {
		return nil, 0, openerGone(err)
	}
	id, errno := order.Uint64(b), syscall.Errno(order.Uint32(b[8:]))
	if errno != 0 {
		return nil, id, errno
	}
	controls, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(controls) != 1 {
		return nil, id, openerGone(err)
	}
	fds, err := unix.ParseUnixRights(&controls[0])
	if err != nil || len(fds) != 1 {
		return nil, id, openerGone(err)
	}
	return os.NewFile(uintptr(fds[0]), "opened"), id, nil
}

// Close ends the opener.
func (o *Opener) Close() error {
	if o == nil {
		return nil
	}
	if err := o.conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}
