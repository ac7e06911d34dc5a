package launch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"agentsh/internal/memfile"
)

// Messages on the sockets of an init. Keep in step with init.h.
const (
	msgDied     = 'E'
	msgFUSE     = 'F'
	msgSocket   = 'N'
	msgMissing  = 'W'
	msgListener = 'L'
	msgTraced   = 'V'
	msgBeside   = 'B'
	msgUnjudged = 'U'
	msgProbes   = 'P'
	msgRoot     = 'O'
	msgReady    = 'R'
	msgExit     = 'X'
	msgTree     = 'T'
	msgEmpty    = 'Z'
	msgMarked   = 'M'
	msgPTY      = 'Y'
	msgSetup    = 'S'
	msgServed   = 'f'
	msgFilter   = 'b'
	msgKill     = 'K'
	msgOpenPTY  = 'y'
	msgCommand  = 'C'
	msgStarted  = 's'
	msgGo       = 'g'
	msgFailed   = 'e'
)

// Operations of a setup. Keep in step with init.h.
const (
	opRoot = 1 + iota
	opDir
	opFile
	opSymlink
	opBind
	opFS
	opAttr
	opMask
	opSocket
	opNetlink
	opLoopback
	opHostname
	opPivot
	opRlimit
	opCreds
	opLandlock
	opFilter
	opProbe
	opEnd
	opNoNamespaces
	opOpener
	opTraceFilter
)

const (
	flagRecursive = 1
	flagOptional  = 2
	flagBeneath   = 4
	flagAfter     = 8

	credsSetGroups = 1
	credsSetIDs    = 2
	credsKeep      = 4

	endDumpable      = 1
	endInterruptible = 2
	endBeside        = 4
	endUnjudged      = 8
	endTagRSS        = 16

	commandTTY = 1
)

// maxSpec is the largest setup or command, in bytes. A command's arguments and
// environment have another limit in the kernel: see execve(2).
const maxSpec = 4 << 20

// maxMessage is the largest message of an init, in bytes: report of restrict.c.
const maxMessage = 8 << 10

var order = binary.NativeEndian

// spec is the specification of a setup or a command for the init. A frame of "agsh",
// version and length is followed by numbers of fixed size and by counted bytes.
type spec struct {
	b   []byte
	err error // of the first value that cannot be encoded
}

func newSpec() *spec {
	s := &spec{b: []byte("agsh")}
	s.u32(1)
	s.u32(0) // length, set by file
	return s
}

func (s *spec) u32(v uint32) { s.b = order.AppendUint32(s.b, v) }
func (s *spec) u64(v uint64) { s.b = order.AppendUint64(s.b, v) }

func (s *spec) bytes(b []byte) {
	s.u32(uint32(len(b)))
	s.b = append(s.b, b...)
}

func (s *spec) str(v string) {
	if strings.IndexByte(v, 0) >= 0 && s.err == nil {
		s.err = fmt.Errorf("%q has a NUL byte", v)
	}
	s.u32(uint32(len(v)))
	s.b = append(s.b, v...)
	s.b = append(s.b, 0)
}

func (s *spec) strs(list []string) {
	s.u32(uint32(len(list)))
	for _, v := range list {
		s.str(v)
	}
}

// file returns the specification in a memory file. The caller closes it.
func (s *spec) file() (*os.File, error) {
	if s.err != nil {
		return nil, s.err
	}
	if len(s.b) > maxSpec {
		return nil, fmt.Errorf("specification of %d bytes: at most %d", len(s.b), maxSpec)
	}
	order.PutUint32(s.b[8:], uint32(len(s.b)))
	f, err := memfile.New("spec", 0)
	if err != nil {
		return nil, err
	}
	if _, err := f.WriteAt(s.b, 0); err != nil {
		return nil, errors.Join(fmt.Errorf("write memory file: %w", err), f.Close())
	}
	return f, nil
}

// message is one message from an init.
type message struct {
	kind byte
	data []byte // after the kind
	fds  []*os.File
	pid  int  // sender, when the socket passes credentials
	cut  bool // this process had no descriptor for one of fds
}

// ErrMalformed is in the chain of the error of a message that the init cannot have
// sent.
var ErrMalformed = errors.New("a message from the session init is malformed")

// closeFDs closes the descriptors of a message that is not used.
func (m *message) closeFDs() {
	for _, f := range m.fds {
		f.Close()
	}
	m.fds = nil
}

// descriptors returns the descriptors when there are exactly n.
func (m *message) descriptors(n int) ([]*os.File, error) {
	if m.cut {
		m.closeFDs()
		return nil, fmt.Errorf("message %q: its descriptors were not received: %w", m.kind, unix.EMFILE)
	}
	if len(m.fds) != n {
		err := fmt.Errorf("message %q has %d descriptors instead of %d", m.kind, len(m.fds), n)
		m.closeFDs()
		return nil, err
	}
	return m.fds, nil
}

// failure returns the error in a message of kind died, failed or missing.
func (m *message) failure() (step string, errno unix.Errno) {
	if len(m.data) < 4 {
		return "malformed message", unix.EBADMSG
	}
	return string(m.data[4:]), unix.Errno(order.Uint32(m.data))
}

// receive reads one message; the largest is the list of proofs. It returns io.EOF when the
// other side has closed.
func receive(c *net.UnixConn) (*message, error) {
	buf := make([]byte, maxMessage)
	oob := make([]byte, unix.CmsgSpace(4*8)+unix.CmsgSpace(unix.SizeofUcred))
	n, oobn, flags, _, err := c.ReadMsgUnix(buf, oob)
	if err != nil {
		return nil, err
	}
	if n == 0 || flags&unix.MSG_TRUNC != 0 {
		return nil, fmt.Errorf("receive: %w: %d bytes", ErrMalformed, n)
	}
	m := &message{kind: buf[0], data: buf[1:n:n], cut: flags&unix.MSG_CTRUNC != 0}
	controls, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return nil, fmt.Errorf("receive: %w: %w", ErrMalformed, err)
	}
	for i := range controls {
		if cred, err := unix.ParseUnixCredentials(&controls[i]); err == nil {
			m.pid = int(cred.Pid)
			continue
		}
		fds, err := unix.ParseUnixRights(&controls[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			m.fds = append(m.fds, os.NewFile(uintptr(fd), "from-init"))
		}
	}
	return m, nil
}

// send writes one message with descriptors, which stay open.
func send(c *net.UnixConn, b []byte, files ...*os.File) error {
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	_, _, err := c.WriteMsgUnix(b, oob, nil)
	return err
}

// pair returns a connected pair of message sockets: one for this process, and a blocking
// one for another process.
func pair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make socket pair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "socket"), os.NewFile(uintptr(fds[1]), "socket")
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("make socket pair: %w", err), theirs.Close())
	}
	return conn.(*net.UnixConn), theirs, nil
}
