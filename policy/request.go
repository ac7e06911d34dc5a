package policy

import "net/netip"

// Request is something a command wants to do: *CommandRequest, *FileRequest,
// *NetworkRequest, *UnixSocketRequest or *SignalRequest.
type Request interface{ group() Group }

// Program is one executable file of a command.
//
// The name a program is called by is chosen by whoever calls it, so it can
// make a rule deny but makes a rule permit only where it is trustworthy: the
// link it names stands in a directory the file rules let nobody change, or the
// caller of Evaluate lists it in Names.
type Program struct {
	Called string   // the name it was called by: the path given to execve, or a bare name
	Path   string   // resolved absolute path inside the sandbox; empty: not resolved
	Names  []string // absolute paths of links on the sandbox's own PATH that lead to this file
	Same   []string // paths of denied programs this file is identical to (inode or content)
	Args   []string // of Chain only: its argument vector, Args[0] included; nil: not known

	MultiCall bool // its content is that of a multi-call program, as busybox
}

// CommandRequest asks to run a program.
type CommandRequest struct {
	Program
	Argv        []string  // whole argument vector, Argv[0] included
	Chain       []Program // interpreters of a script, loaders' programs, wrapper payloads; outermost last
	Cwd         string    // absolute, inside the sandbox
	Depth       int       // 0: asked for by the operator; n: n execs below
	Parent      string    // path of the calling program; empty at depth 0
	Ancestors   []string  // paths, nearest first
	Interactive bool      // has a terminal
}

// FileOp is a set of file operations.
type FileOp uint32

// The file operations, in the words of file_rules.
const (
	OpRead FileOp = 1 << iota
	OpWrite
	OpCreate
	OpDelete
	OpRename
	OpList
	OpStat
	OpChmod
	OpChown
	OpLink
	OpSymlink
	OpMkdir
	OpRmdir
	OpMknod
	OpXattr
	OpUtime
	OpExecute
	OpAll FileOp = 1<<iota - 1
)

// FileRequest asks for one operation on one path. Both names of a rename or
// link are two requests.
type FileRequest struct {
	Path string // absolute, inside the sandbox, links resolved
	Op   FileOp // exactly one bit
}

// Intercepted as the Method of a NetworkRequest says that the connection is
// inspected: each HTTP request on it will be evaluated by itself.
const Intercepted = "*"

// NetworkRequest asks for a connection, a bind or a datagram. A request made
// before its host is resolved is made again with the address.
type NetworkRequest struct {
	Domain   string     // host name as normalised; empty when only an address is known
	Addr     netip.Addr // not valid before the name is resolved
	Port     int
	Protocol string // tcp, udp
	Method   string // HTTP method; empty: the connection is not inspected; or Intercepted
	Path     string // HTTP path of an inspected connection
	Binary   string // path of the program that connects
}

// Host returns the host name of the request, or its address if it has no name.
func (q *NetworkRequest) Host() string {
	if q.Domain == "" && q.Addr.IsValid() {
		return q.Addr.String()
	}
	return q.Domain
}

// UnixSocketRequest asks to reach or create a Unix socket.
type UnixSocketRequest struct {
	Path string // resolved path, or @name for an abstract socket
	Op   string // connect, bind, listen, sendto
}

// SignalRequest asks to send a signal.
type SignalRequest struct {
	Signal int    // number
	Target string // self, children, descendants, siblings, session, parent, external, system
	PID    int    // inside the sandbox
	Name   string // base name of the target's program
	// SameUser: the target runs as the sender's user.
	SameUser bool
}

func (*CommandRequest) group() Group    { return GroupCommand }
func (*FileRequest) group() Group       { return GroupFile }
func (*NetworkRequest) group() Group    { return GroupNetwork }
func (*UnixSocketRequest) group() Group { return GroupUnixSocket }
func (*SignalRequest) group() Group     { return GroupSignal }
