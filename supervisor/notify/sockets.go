package notify

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/seccomp/target"
)

// Network is how calls about sockets are answered.
type Network struct {
	// Connect is told of each connect(2) of an Internet socket before it goes on.
	// When it returns a Carry, the caller's socket is connected as that says, by
	// a duplicate of its descriptor. Nil: connections are not followed.
	Connect func(Connect) *Carry
	// Sockets has connect, bind and sendto judged by unix_socket_rules. What goes
	// on is read again by the kernel: the rules refine what the mounts of the
	// session and the scope of its Landlock domain hold.
	Sockets bool
	// Shared says that the session has no network of its own: sockets listen on
	// loopback only.
	Shared bool
	// UID and GID are who commands run as.
	UID, GID int
}

// Connect is one connect(2) of an Internet socket.
type Connect struct {
	Command string // request id of the top-level command
	Process wire.Process
	Inode   uint64 // of the socket
	Stream  bool   // it looked like one; another thread can exchange it
	To      netip.AddrPort
}

// Carry says where a socket is connected instead of where its program asked for.
type Carry struct {
	Refused unix.Errno     // nowhere
	V4, V6  netip.AddrPort // one of them may be missing
	// Register is told the local address of the socket before it connects; the
	// function it returns is called when the connection did not come about.
	Register func(local netip.AddrPort) (forget func())
}

// maxSockaddr is the size of struct sockaddr_storage.
const maxSockaddr = 128

// sockaddr is the address of a connect, bind or sendto.
type sockaddr struct {
	family int
	inet   netip.AddrPort // of AF_INET and AF_INET6
	name   string         // of AF_UNIX: a path, @ and an abstract name, or empty
}

func (w *worker) connect(c *call) error {
	return w.aboutAddress(c, c.Args[1], c.Args[2], "connect")
}

func (w *worker) bind(c *call) error { return w.aboutAddress(c, c.Args[1], c.Args[2], "bind") }

func (w *worker) sendto(c *call) error { return w.aboutAddress(c, c.Args[4], c.Args[5], "sendto") }

// aboutAddress answers a call that names an address.
func (w *worker) aboutAddress(c *call, addr, length uint64, op string) error {
	t, err := target.Open(c.TID)
	if err != nil {
		return err
	}
	defer t.Close()
	a, err := readSockaddr(t, addr, int(int32(length)))
	if !c.valid() {
		return errGone
	}
	if errno, ok := asErrno(err); ok {
		c.deny(errno)
		return nil
	}
	if err != nil {
		return err
	}
	n := w.loop.cfg.Network
	switch {
	case a.family == unix.AF_UNIX && n.Sockets:
		return w.unixSocket(c, t, a.name, op)
	case a.inet.IsValid() && op == "connect" && n.Connect != nil:
		return w.inetConnect(c, t, a)
	}
	w.goOn(c)
	return nil
}

// goOn lets the call continue as the thread made it.
func (w *worker) goOn(c *call) {
	if c.claim() {
		c.answer(w.loop.cfg.Listener.Continue(c.ID))
	}
}

// readSockaddr reads an address as the kernel would.
func readSockaddr(t *target.Target, addr uint64, length int) (sockaddr, error) {
	if length < 0 || length > maxSockaddr {
		return sockaddr{}, unix.EINVAL
	}
	if length < 2 {
		return sockaddr{}, nil // the kernel refuses it
	}
	b, err := t.Bytes(addr, length)
	if err != nil {
		return sockaddr{}, err
	}
	a := sockaddr{family: int(binary.NativeEndian.Uint16(b))}
	switch {
	case a.family == unix.AF_INET && length >= unix.SizeofSockaddrInet4:
		a.inet = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:]))
	case a.family == unix.AF_INET6 && length >= sizeofOldInet6:
		a.inet = netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])), binary.BigEndian.Uint16(b[2:]))
	case a.family == unix.AF_UNIX && length > 2 && b[2] == 0:
		a.name = "@" + string(b[3:])
	case a.family == unix.AF_UNIX && length > 2:
		a.name, _, _ = strings.Cut(string(b[2:]), "\x00")
	}
	return a, nil
}

// sizeofOldInet6 is a struct sockaddr_in6 without its scope, which the kernel
// takes too. See SIN6_LEN_RFC2133.
const sizeofOldInet6 = 24

// inetConnect follows a connection of an Internet socket.
func (w *worker) inetConnect(c *call, t *target.Target, a sockaddr) error {
	fd := int(int32(c.Args[0]))
	question := Connect{To: a.inet}
	var err error
	if question.Inode, err = t.SocketInode(fd); err != nil {
		if errno, ok := asErrno(err); ok {
			c.deny(errno)
			return nil
		}
		return err
	}
	if question.Process, question.Command, err = w.who(t); err != nil {
		return err
	}
	if !c.valid() {
		return errGone
	}
	question.Stream = t.Stream(fd)
	carry := w.loop.cfg.Network.Connect(question)
	switch {
	case carry == nil:
		w.goOn(c)
		return nil
	case carry.Refused != 0:
		c.deny(carry.Refused)
		return nil
	}
	errno, native, err := w.carry(c, t, fd, a, carry)
	switch {
	case err != nil:
		return err
	case native:
		w.goOn(c)
	case errno != 0:
		c.deny(errno)
	case c.claim():
		c.answer(w.loop.cfg.Listener.Value(c.ID, 0))
	}
	return nil
}

// who describes the process of a thread for events.
func (w *worker) who(t *target.Target) (wire.Process, string, error) {
	id, err := t.Identity()
	if err != nil {
		return wire.Process{}, "", err
	}
	p := wire.Process{PID: id.PID, StartTime: id.Start, Exe: t.Exe(), Cwd: t.Cwd()}
	caller, err := w.loop.images.of(t, id)
	if err != nil {
		return p, "", err
	}
	return p, caller.command.ID, nil
}

// unixSocket judges a call about a Unix socket.
func (w *worker) unixSocket(c *call, t *target.Target, name, op string) error {
	if name == "" { // the kernel picks a name, or refuses
		w.goOn(c)
		return nil
	}
	resolved, err := socketPath(t, name, op)
	if errno, ok := asErrno(err); ok {
		c.deny(errno)
		return nil
	}
	if err != nil {
		return err
	}
	if !c.valid() {
		return errGone
	}
	decision, diagnostic := c.rules.Evaluate(&policy.UnixSocketRequest{Path: resolved, Op: op})
	if decision.Effect == policy.Allow {
		w.goOn(c)
		return nil
	}
	e := wire.Event{
		Type: wire.EventNet, Session: w.loop.cfg.Session, Path: resolved, Op: op, Decision: "deny", Mechanism: "seccomp",
		Message: diagnostic.Message, Hint: diagnostic.Hint, Rule: ruleAt(diagnostic),
	}
	if p, command, err := w.who(t); err == nil {
		e.Process, e.Command = &p, command
	}
	switch {
	case decision.Effect == policy.Audit:
		e.Decision = "audit"
	case decision.Effect == policy.Approve && w.loop.cfg.Ask != nil:
		w.loop.askSocket(c, e, decision, diagnostic)
		return nil
	}
	return w.answerSocket(c, e)
}

// answerSocket records the decision of an event and carries it out.
func (w *worker) answerSocket(c *call, e wire.Event) error {
	if e.Decision == "deny" {
		w.loop.emit(e)
		c.deny(unix.EACCES)
		return nil
	}
	if err := w.loop.cfg.Emit(e); err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	w.goOn(c)
	return nil
}

// askSocket has a person decide a call about a Unix socket, while no worker
// waits.
func (l *Loop) askSocket(c *call, e wire.Event, d policy.Decision, why policy.Diagnostic) {
	l.running.Go(func() {
		w := &worker{loop: l}
		defer func() { w.recovered(c, recover()) }()
		q := wire.Question{Command: e.Command, Kind: wire.AskNet, Subject: e.Op + " " + e.Path, Process: e.Process}
		answer := l.person(c, asked(q, d, why))
		if !c.valid() {
			return
		}
		e.By = answer.By
		if answer.Allow {
			e.Decision = "approve"
		} else {
			e.Message = because(why, answer)
		}
		if err := w.answerSocket(c, e); err != nil {
			c.fault(err)
		}
	})
}

// socketPath is the name of a socket as rules have it: of an abstract one with
// @, of a path with its links resolved.
func socketPath(t *target.Target, name, op string) (string, error) {
	if name[0] == '@' {
		return name, nil
	}
	find := target.Lookup{Dir: unix.AT_FDCWD, Path: name}
	if op == "bind" { // it does not exist yet: its directory does
		find.Path = path.Dir(name)
	}
	h, err := t.Resolve(find)
	if err != nil {
		return "", err
	}
	defer h.Close()
	switch {
	case h.Path == "":
		return "", unix.ECONNREFUSED
	case op == "bind":
		return path.Join(h.Path, path.Base(name)), nil
	}
	return h.Path, nil
}

// errNotTCP says that a socket is not what a carry is for.
var errNotTCP = errors.New("not a TCP socket")
