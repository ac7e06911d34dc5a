package launch

import (
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"agentsh/seccomp/target"
	"agentsh/supervisor/probe/trial"
)

// Calls are what the supervisor does while the init starts.
type Calls struct {
	// Guarded is called when the init begins to set itself up. The session has its guard, see
	// package threads. Nil: nobody needs to know.
	Guarded func()
	// Rooted is called when the root that commands see is complete, before anything of theirs
	// runs. pid is the init, which may have ended. It is not called without namespaces. Nil:
	// nobody needs to know.
	Rooted func(pid int)
	// Beside is called where commands are traced: a listener of another supervisor, which may
	// be above, takes calls away from a tracer. It returns the filter to load instead of
	// TraceFilter. known: the kernel reports such a listener. Nil: TraceFilter is loaded,
	// unless it is known.
	Beside func(known bool) ([]byte, error)
}

// Config is a session as its init sets it up.
type Config struct {
	// Mounts fill the new root, in this order. The root itself is an empty
	// tmpfs, read-only once it is filled. Missing mount points are made.
	Mounts []Mount
	// User runs the init and every command.
	User User
	// NoNamespaces makes no namespaces and no mounts. Commands see the machine as it
	// is, and only Landlock and Filter restrict them. A supervisor without privilege
	// can then only run commands as itself.
	NoNamespaces bool
	Hostname     string
	Network      Network
	Limits       []Rlimit // of the init and every command
	Landlock     *Landlock
	Filter       []byte // program of seccomp.Plan.Compile; nil: none with a listener
	// TraceFilter is the program of seccomp.Traced. Each command loads it if there is no
	// Filter, or if the kernel has no listener for it. Nil: the session then fails.
	TraceFilter []byte
	// Unjudged says that there is no engine. Filter then has refusals only, and is loaded
	// where another filter does not forbid that.
	Unjudged bool
	Calls
	// Interruptible loads the filter without WAIT_KILLABLE_RECV, which came with
	// Linux 5.19: a signal then interrupts a call that waits for its answer.
	Interruptible bool
	// Opener lists the paths beneath which commands open files for reading themselves.
	// [Init.Opener] opens all other files. Landlock, which needs scopes, keeps commands
	// from opening those. Nil: there is no opener.
	Opener   []string
	ReadOnly []string // paths inside for which writing must fail: proven before the init is ready

	tagBase uint64 // of a session without namespaces: see init.h
}

// User is a user with its groups, and the user namespace that it is in.
type User struct {
	UID, GID int // inside; 0 needs Namespace
	// Groups are the supplementary groups. In a user namespace they cannot be chosen:
	// root's are dropped, those of another supervisor stay.
	Groups []int
	// Namespace makes a user namespace in which UID and GID are the only ids. A
	// supervisor without privilege needs it, and can then only map itself.
	Namespace bool
	// HostUID and HostGID are what UID and GID of a user namespace are outside.
	// Zero values mean those of the supervisor, which root may not use.
	HostUID, HostGID int
}

// Network is the network of a session.
type Network struct {
	Shared  bool      // it is the supervisor's; there is nothing to set up
	Sockets []Socket  // to open in the session's network namespace
	Netlink []Netlink // further setup of that namespace, after Sockets
}

// Kind is a kind of mount.
type Kind uint8

// The kinds of mount.
const (
	Bind    Kind = iota // Source, from the supervisor's view, with what is mounted below it
	Tmpfs               // empty, Size bytes at most
	Proc                // processes of the session; files that show or change more are covered
	Dev                 // null zero full random urandom tty, ptmx and pts, shm, fd, stdin stdout stderr
	FUSE                // announced by its Tag; another process serves it
	Dir                 // a directory of mode Mode
	File                // a file with Data of mode Mode
	Symlink             // a symbolic link to Source
	Mask                // covers a file or directory by an empty one; a missing one is ignored
	Rebind              // Source is a path inside the new root
	Overlay             // layers named by Options, as lowerdir=A:B; of the machine, or one below [InRoot]
)

// InRoot begins the first layer of an Overlay that lies in the new root.
const InRoot = "@root"

// Mount is one step of building the new root.
type Mount struct {
	Kind     Kind
	Source   string
	Target   string // absolute, inside
	ReadOnly bool
	NoExec   bool
	Device   bool // device nodes work; else nodev
	Optional bool // a missing Source is no error
	Mode     uint32
	Size     int64    // bytes; 0: 64 MiB
	Data     []byte   // of a File
	Options  []string // further mount options of Tmpfs, FUSE and Overlay
	Tag      string   // of FUSE, at most 200 bytes
	Single   bool     // FUSE: Target is one regular file
}

// Socket is a socket of the session's network that the supervisor gets under its tag. One
// of AF_INET or AF_INET6 is bound to a port of loopback, and a stream socket listens. One
// of AF_NETLINK has a protocol.
type Socket struct {
	Tag      string
	Family   int
	Type     int  // SOCK_STREAM, SOCK_DGRAM or SOCK_RAW
	Port     int  // 0: any; of AF_NETLINK the protocol
	Optional bool // a failure is reported by [Init.Missing]
}

// Netlink are messages to the kernel about the session's network. The init sends them
// with CAP_NET_ADMIN over that network. See netlink(7).
type Netlink struct {
	Tag      string
	Protocol int
	Messages []byte
	Acks     int  // messages with NLM_F_ACK
	Optional bool // a failure is reported by [Init.Missing]
	After    bool // skipped if the entry before failed
}

// Rlimit is a resource limit. See getrlimit(2).
type Rlimit struct {
	Resource   int
	Soft, Hard uint64
}

// Mount attributes. See mount_setattr(2).
const (
	attrReadOnly = unix.MOUNT_ATTR_RDONLY
	attrNoSuid   = unix.MOUNT_ATTR_NOSUID
	attrNoDev    = unix.MOUNT_ATTR_NODEV
	attrNoExec   = unix.MOUNT_ATTR_NOEXEC
)

// attrs are the attributes of a mount: nosuid always.
func (m *Mount) attrs() uint64 {
	a := uint64(attrNoSuid)
	if m.ReadOnly {
		a |= attrReadOnly
	}
	if m.NoExec {
		a |= attrNoExec
	}
	if !m.Device {
		a |= attrNoDev
	}
	return a
}

func (m *Mount) size() string {
	size := m.Size
	if size == 0 {
		size = 64 << 20
	}
	return fmt.Sprintf("size=%d", size)
}

// check reports errors that the kernel would report late or not at all.
func (c *Config) check() error {
	if err := c.User.check(c.NoNamespaces); err != nil {
		return err
	}
	switch {
	case len(c.Filter)+len(c.TraceFilter) == 0:
		return fmt.Errorf("session without a filter")
	case c.NoNamespaces && (c.User.Namespace || len(c.Mounts) > 0 || len(c.Network.Sockets) > 0):
		return fmt.Errorf("session without namespaces, but with mounts, sockets or a user namespace")
	case c.Opener != nil && (c.NoNamespaces || LandlockABI() < trial.LandlockScopes):
		return fmt.Errorf("opener without namespaces or without Landlock's scopes")
	case len(c.ReadOnly) > 64:
		return fmt.Errorf("%d paths to prove: at most 64", len(c.ReadOnly))
	case c.Network.Shared && len(c.Network.Sockets)+len(c.Network.Netlink) > 0:
		return fmt.Errorf("network setup in a session that shares the network of the machine")
	}
	for _, m := range c.Mounts {
		if err := m.check(); err != nil {
			return err
		}
	}
	return c.Landlock.check(LandlockABI())
}

// check reports a user that the supervisor cannot or must not run commands as.
func (u *User) check(noNamespaces bool) error {
	root := os.Geteuid() == 0
	switch {
	case noNamespaces && !root && u.UID != os.Geteuid():
		return fmt.Errorf("session without namespaces as user %d: the supervisor is not root", u.UID)
	case !u.Namespace && !noNamespaces && !root:
		return fmt.Errorf("session without a user namespace: the supervisor is not root")
	case !u.Namespace && (u.UID == 0 || u.GID == 0 && root): // a user may have group 0: docker run --user 1000
		return fmt.Errorf("session as root of the machine")
	case u.Namespace && root && (u.HostUID == 0 || u.HostGID == 0):
		return fmt.Errorf("user namespace mapped to root of the machine")
	case u.UID < 0 || u.GID < 0:
		return fmt.Errorf("user %d, group %d: negative", u.UID, u.GID)
	case len(u.Groups) > 256:
		return fmt.Errorf("%d supplementary groups: at most 256", len(u.Groups))
	}
	return nil
}

func (m *Mount) check() error {
	if !path.IsAbs(m.Target) || path.Clean(m.Target) != m.Target || m.Target == "/" {
		return fmt.Errorf("mount target %q is not a clean absolute path below /", m.Target)
	}
	if m.Kind == FUSE && (m.Tag == "" || len(m.Tag) > 200) {
		return fmt.Errorf("FUSE mount %s: tag %q", m.Target, m.Tag)
	}
	for _, o := range m.Options {
		if strings.ContainsAny(o, ",\x00") {
			return fmt.Errorf("mount %s: option %q", m.Target, o)
		}
	}
	return nil
}

// setup returns the operations of the init in order: the new root, network, host name,
// change of root, limits, user, Landlock, filter.
func (c *Config) setup() *spec {
	s := newSpec()
	if c.NoNamespaces {
		s.u32(opNoNamespaces)
		s.u64(c.tagBase)
	} else {
		c.rootOps(s)
	}
	for _, l := range c.Limits {
		s.u32(opRlimit)
		s.limit(l)
	}
	c.User.op(s, c.NoNamespaces)
	if c.Landlock != nil {
		c.Landlock.op(s)
	}
	if c.Opener != nil {
		s.u32(opOpener)
		s.strs(c.Opener)
	}
	if c.Filter != nil {
		s.u32(opFilter)
		s.bytes(c.Filter)
	}
	if c.TraceFilter != nil {
		s.u32(opTraceFilter)
		s.bytes(c.TraceFilter)
	}
	for _, p := range c.ReadOnly {
		s.u32(opProbe)
		s.str(p)
	}
	s.u32(opEnd)
	flags := uint32(0)
	if os.Geteuid() != 0 || c.NoNamespaces {
		// Files below /proc/PID of an undumpable process belong to root. A supervisor
		// without the capability to trace could not read the calls of commands.
		flags |= endDumpable
	}
	if c.Interruptible {
		flags |= endInterruptible
	}
	if c.Unjudged {
		flags |= endUnjudged
	}
	if c.Beside != nil {
		flags |= endBeside
	}
	if target.TagRSS() {
		flags |= endTagRSS
	}
	s.u32(flags)
	return s
}

// rootOps adds the operations for the session's own root, network and host name.
func (c *Config) rootOps(s *spec) {
	s.u32(opRoot)
	s.u64(16 << 20)
	for i := range c.Mounts {
		c.mountOps(s, &c.Mounts[i])
	}
	s.attr("/", attrReadOnly|attrNoSuid|attrNoDev)
	if !c.Network.Shared {
		s.u32(opLoopback)
	}
	c.Network.ops(s)
	if c.Hostname != "" {
		s.u32(opHostname)
		s.str(c.Hostname)
	}
	s.u32(opPivot)
}

func (n *Network) ops(s *spec) {
	for _, l := range n.Sockets {
		s.u32(opSocket)
		s.str(l.Tag)
		s.u32(uint32(l.Family))
		s.u32(uint32(l.Type))
		s.u32(uint32(l.Port))
		s.u32(optional(l.Optional))
	}
	for _, m := range n.Netlink {
		flags := optional(m.Optional)
		if m.After {
			flags |= flagAfter
		}
		s.u32(opNetlink)
		s.str(m.Tag)
		s.u32(uint32(m.Protocol))
		s.u32(uint32(m.Acks))
		s.u32(flags)
		s.bytes(m.Messages)
	}
}

func optional(yes bool) uint32 {
	if yes {
		return flagOptional
	}
	return 0
}

func (s *spec) limit(l Rlimit) {
	s.u32(uint32(l.Resource))
	s.u64(l.Soft)
	s.u64(l.Hard)
}

// op makes the init change to the user.
func (u *User) op(s *spec, noNamespaces bool) {
	s.u32(opCreds)
	s.u32(uint32(u.UID))
	s.u32(uint32(u.GID))
	flags := uint32(0)
	if noNamespaces && os.Geteuid() != 0 {
		flags = credsKeep
	}
	if u.Namespace || flags != 0 {
		s.u32(0) // a user namespace made without privilege forbids setgroups
	} else {
		flags = credsSetGroups | credsSetIDs
		s.u32(uint32(len(u.Groups)))
		for _, g := range u.Groups {
			s.u32(uint32(g))
		}
	}
	s.u32(flags)
}

func (c *Config) mountOps(s *spec, m *Mount) {
	switch m.Kind {
	case Bind, Rebind:
		flags := uint32(flagRecursive)
		if m.Optional {
			flags |= flagOptional
		}
		if m.Kind == Rebind {
			flags |= flagBeneath
		}
		s.bind(m.Source, m.Target, m.attrs(), flags)
	case Tmpfs:
		mode := m.Mode
		if mode == 0 {
			mode = 0o755
		}
		options := append(
			[]string{m.size(), fmt.Sprintf("mode=%#o", mode), fmt.Sprintf("uid=%d", c.User.UID), fmt.Sprintf("gid=%d", c.User.GID)},
			m.Options...)
		s.fs("tmpfs", m.Target, m.attrs(), "", options)
	case Overlay:
		s.fs("overlay", m.Target, m.attrs(), "", m.Options)
	case FUSE:
		rootmode := "rootmode=40000"
		if m.Single {
			rootmode = "rootmode=100000"
		}
		options := append(
			[]string{"source=" + m.Tag, rootmode, fmt.Sprintf("user_id=%d", c.User.UID), fmt.Sprintf("group_id=%d", c.User.GID)},
			m.Options...)
		s.fs("fuse", m.Target, m.attrs(), m.Tag, options)
	case Proc:
		procOps(s, m.Target)
	case Dev:
		devOps(s, m.Target)
	case Dir:
		s.u32(opDir)
		s.str(m.Target)
		s.u32(m.Mode)
	case File:
		s.u32(opFile)
		s.str(m.Target)
		s.u32(m.Mode)
		s.bytes(m.Data)
	case Symlink:
		s.symlink(m.Target, m.Source)
	case Mask:
		s.u32(opMask)
		s.str(m.Target)
	default:
		s.err = fmt.Errorf("mount %s: kind %d is unknown", m.Target, m.Kind)
	}
}

func (s *spec) bind(source, target string, attrs uint64, flags uint32) {
	s.u32(opBind)
	s.str(source)
	s.str(target)
	s.u64(attrs)
	s.u32(flags)
}

func (s *spec) fs(kind, target string, attrs uint64, tag string, options []string) {
	s.u32(opFS)
	s.str(kind)
	s.str(target)
	s.u64(attrs)
	s.str(tag)
	s.strs(options)
}

func (s *spec) attr(target string, attrs uint64) {
	s.u32(opAttr)
	s.str(target)
	s.u64(attrs)
	s.u32(0)
}

func (s *spec) symlink(target, text string) {
	s.u32(opSymlink)
	s.str(target)
	s.str(text)
}

// procOps mounts /proc read-only. A command that could open /proc/PID/mem of another
// process for writing would change its arguments after they were evaluated. hidepid=2
// hides every process that a command may not trace, above all the init. Files about the
// machine are covered, or made read-only a second time.
func procOps(s *spec, target string) {
	const attrs = attrNoSuid | attrNoDev | attrNoExec
	s.fs("proc", target, attrs|attrReadOnly, "", []string{"hidepid=2"})
	for _, name := range []string{"sys", "irq", "bus", "fs", "sysrq-trigger"} {
		at := path.Join(target, name)
		s.bind(at, at, attrs|attrReadOnly, flagBeneath|flagOptional)
	}
	for _, name := range []string{"kcore", "keys", "key-users", "kmsg", "kallsyms", "timer_list", "latency_stats", "sched_debug", "scsi",
		"acpi", "asound"} {
		s.u32(opMask)
		s.str(path.Join(target, name))
	}
}

// devOps makes a minimal /dev: nodes of the machine that are safe to share, and the
// session's own terminals and shared memory.
func devOps(s *spec, target string) {
	const attrs = attrNoSuid | attrNoExec
	in := func(name string) string { return path.Join(target, name) }
	s.fs("tmpfs", target, attrs, "", []string{"size=65536", "mode=0755"})
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		s.bind("/dev/"+name, in(name), attrs, 0)
	}
	s.fs("devpts", in("pts"), attrs, "", []string{"ptmxmode=0666", "mode=0620"})
	s.symlink(in("ptmx"), "pts/ptmx")
	s.symlink(in("fd"), "/proc/self/fd")
	s.symlink(in("stdin"), "/proc/self/fd/0")
	s.symlink(in("stdout"), "/proc/self/fd/1")
	s.symlink(in("stderr"), "/proc/self/fd/2")
	s.fs("tmpfs", in("shm"), attrs|attrNoDev, "", []string{"size=50%", "mode=1777"})
	s.attr(target, attrs|attrReadOnly)
}
