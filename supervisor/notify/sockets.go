package notify

import (
	"encoding/binary"
	"errors"
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
	// Connect is called for each connect(2) of an Internet socket before it goes on.
	// If it returns a Destination, the supervisor emulates the call: it connects a
	// duplicate of the descriptor to that. If it returns nil, the kernel executes the
	// call. A nil Connect lets all of them go on.
	Connect func(Connect) *Destination
	// Sockets has unix_socket_rules decide on connect, bind and sendto. The kernel
	// reads the address of a call that goes on again. These rules therefore refine
	// what the session's mounts and the scope of its Landlock domain enforce.
	Sockets bool
	// Shared says that the session has no network namespace: sockets listen on
	// loopback only.
	Shared bool
	// UID and GID are the user and the group of the commands.
	UID, GID int
}

// Connect is one connect(2) of an Internet socket.
type Connect struct {
	Command string // request id of the top-level command
	Process wire.Process
	Inode   uint64 // of the socket
	Stream  bool   // it was a stream socket; another thread can exchange the descriptor
	To      netip.AddrPort
}

// Destination is where a socket is connected instead of where its program asked for.
type Destination struct {
	Errno  unix.Errno     // the call fails with it; 0: the socket is connected
	V4, V6 netip.AddrPort // by the family of the socket; one may be missing
	// Register is called with the local address of the socket before it connects. The
	// function it returns is called when the connection was not made.
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

// sockets answers calls about sockets.
type sockets struct {
	network  Network
	images   *images
	record   *recorder
	approver *approver
}

// addressCalls are the calls that name an address, and the argument that points
// to it. Its length is the argument after that.
var addressCalls = map[int]struct {
	op  string
	arg int
}{unix.SYS_CONNECT: {"connect", 1}, unix.SYS_BIND: {"bind", 1}, unix.SYS_SENDTO: {"sendto", 4}}

// address answers a call of addressCalls.
func (h *sockets) address(c *call) (answer, error) {
	t, err := target.Open(c.TID)
	if err != nil {
		return noAnswer, err
	}
	defer t.Close()
	op, arg := addressCalls[c.Syscall].op, addressCalls[c.Syscall].arg
	a, err := readSockaddr(t, c.Args[arg], int(int32(c.Args[arg+1])))
	if !c.valid() {
		return noAnswer, errGone
	}
	if errno, ok := errnoOf(err); ok {
		return deny(errno), nil
	}
	if err != nil {
		return noAnswer, err
	}
	switch {
	case a.family == unix.AF_UNIX && h.network.Sockets:
		return h.unixSocket(c, t, a.name, op)
	case a.inet.IsValid() && op == "connect" && h.network.Connect != nil:
		return h.inetConnect(c, t, a)
	}
	return proceed, nil
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

// sizeofOldInet6 is the size of a struct sockaddr_in6 without its scope, which the kernel
// accepts. See SIN6_LEN_RFC2133.
const sizeofOldInet6 = 24

// inetConnect answers connect of an Internet socket.
func (h *sockets) inetConnect(c *call, t *target.Target, a sockaddr) (answer, error) {
	fd := int(int32(c.Args[0]))
	question := Connect{To: a.inet}
	var err error
	if question.Inode, err = t.SocketInode(fd); err != nil {
		if errno, ok := errnoOf(err); ok {
			return deny(errno), nil
		}
		return noAnswer, err
	}
	if question.Process, question.Command, err = h.images.identify(t); err != nil {
		return noAnswer, err
	}
	if !c.valid() {
		return noAnswer, errGone
	}
	question.Stream = t.Stream(fd)
	to := h.network.Connect(question)
	switch {
	case to == nil:
		return proceed, nil
	case to.Errno != 0:
		return deny(to.Errno), nil
	}
	return h.emulateConnect(c, t, fd, a, to)
}

// unixSocket decides a call about a Unix socket.
func (h *sockets) unixSocket(c *call, t *target.Target, name, op string) (answer, error) {
	if name == "" { // the kernel picks a name, or refuses
		return proceed, nil
	}
	resolved, err := socketPath(t, name, op)
	if errno, ok := errnoOf(err); ok {
		return deny(errno), nil
	}
	if err != nil {
		return noAnswer, err
	}
	if !c.valid() {
		return noAnswer, errGone
	}
	decision, diagnostic := c.rules.Evaluate(&policy.UnixSocketRequest{Path: resolved, Op: op})
	if decision.Effect == policy.Allow {
		return proceed, nil
	}
	e := wire.Event{
		Type: wire.EventNet, Path: resolved, Op: op, Decision: "deny", Mechanism: "seccomp",
		Message: diagnostic.Message, Hint: diagnostic.Hint, Rule: diagnostic.At(),
	}
	if p, command, err := h.images.identify(t); err == nil {
		e.Process, e.Command = &p, command
	}
	if h.approver.decides(decision) {
		return h.approver.tasks.answer(c, func(c *call) (answer, error) { return h.approve(c, e, decision, diagnostic) })
	}
	if decision.Effect == policy.Audit {
		e.Decision = "audit"
	}
	return h.apply(e)
}

// apply records the decision of an event and applies it.
func (h *sockets) apply(e wire.Event) (answer, error) {
	if e.Decision == "deny" {
		h.record.report(e)
		return deny(unix.EACCES), nil
	}
	return proceed, h.record.permit(e)
}

// approve has a person decide a call about a Unix socket.
func (h *sockets) approve(c *call, e wire.Event, d policy.Decision, why policy.Diagnostic) (answer, error) {
	q := wire.Question{Command: e.Command, Kind: wire.AskNet, Subject: wire.Name(e.Op + " " + e.Path), Process: e.Process}
	given, err := h.approver.wait(c, withRule(q, d, why))
	if err != nil {
		return noAnswer, err
	}
	e.By = given.By
	if given.Allow {
		e.Decision = "approve"
	} else {
		e.Message, e.Hint = denialMessage(why, given), given.Hint(e.Hint)
	}
	return h.apply(e)
}

// socketPath is the name of a socket as rules have it: an abstract name after @, or a
// path without symbolic links.
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

// errNotTCP says that a socket is of a kind that is not emulated.
var errNotTCP = errors.New("not a TCP socket")
