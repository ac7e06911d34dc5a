package policy

import "net/netip"

// Request is one operation that a command requests: a *CommandRequest,
// *FileRequest, *NetworkRequest, *UnixSocketRequest or *SignalRequest.
type Request interface{ group() Group }

// Program is one executable file of a command.
//
// The caller of a program chooses the name in Called. That name can always
// cause a denial. It can allow only if it is trustworthy. It is trustworthy if
// the caller of Evaluate lists it in Names, or if the file rules deny every
// change in the directory of the link.
type Program struct {
	Called string   // the name it was called by: the path given to execve, or a bare name
	Path   string   // resolved absolute path inside the sandbox; empty: not resolved
	Names  []string // absolute paths of links on the sandbox's own PATH that lead to this file
	Same   []string // paths of denied programs this file is identical to (inode or content)
	Args   []string // of Chain only: its argument vector, Args[0] included; nil: not known

	MultiCall bool // its content is that of a multi-call program such as busybox
}

// CommandRequest is a request to execute a program.
type CommandRequest struct {
	Program
	Argv        []string  // whole argument vector, Argv[0] included
	Chain       []Program // interpreters of a script, loaders' programs, wrapper payloads; outermost last
	Cwd         string    // absolute, inside the sandbox
	Depth       int       // 0: started by the operator; n: n execs below
	Parent      string    // path of the calling program; empty at depth 0
	Ancestors   []string  // paths, nearest first
	Interactive bool      // has a terminal
}

// FileOp is a set of file operations.
type FileOp uint32

// The file operations, named as in file_rules.
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

// FileRequest is a request for one operation on one path. A rename or link is
// two requests, one for each name.
type FileRequest struct {
	Path string // absolute, inside the sandbox, links resolved
	Op   FileOp // exactly one bit
}

// Intercepted is a value of NetworkRequest.Method. It means that the connection
// is inspected and each HTTP request on it is evaluated separately.
const Intercepted = "*"

// NetworkRequest is a request for a connection, a bind or a datagram. If it is
// evaluated before the host is resolved, it is evaluated again with the
// address.
type NetworkRequest struct {
	Domain   string     // normalised host name; empty if only the address is known
	Addr     netip.Addr // invalid before the name is resolved
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

// UnixSocketRequest is a request to connect to, bind, listen on or send to a
// Unix socket.
type UnixSocketRequest struct {
	Path string // resolved path, or @name for an abstract socket
	Op   string // connect, bind, listen, sendto
}

// SignalRequest is a request to send a signal.
type SignalRequest struct {
	Signal int    // number
	Target string // self, children, descendants, siblings, session, parent, external, system
	PID    int    // inside the sandbox
	Name   string // base name of the target's program
	// SameUser is set if the target runs as the sender's user.
	SameUser bool
}

func (*CommandRequest) group() Group    { return GroupCommand }
func (*FileRequest) group() Group       { return GroupFile }
func (*NetworkRequest) group() Group    { return GroupNetwork }
func (*UnixSocketRequest) group() Group { return GroupUnixSocket }
func (*SignalRequest) group() Group     { return GroupSignal }
