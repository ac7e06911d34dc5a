package fuse

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"agentsh/internal/trash"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/policy/syntax"
)

// Config is the first message of the supervisor.
type Config struct {
	Session string              `json:"session"` // name in events
	Mounts  []MountConfig       `json:"mounts"`
	Policy  []wire.PolicySource `json:"policy"` // the main file first, then the files it extends
	Vars    map[string]string   `json:"vars"`
	Owner   Owner               `json:"owner"`
	Trash   trash.Limits        `json:"trash"`   // of the directory donated as [TrashName]
	Approve bool                `json:"approve"` // the supervisor accepts approval requests
	// Casefold says that single directories may be case-insensitive, see
	// [KernelFolds].
	Casefold bool `json:"casefold"`
	// CacheSeconds limits, in seconds, how long commands may see outdated names and
	// attributes in directories that cannot be watched. 0 means one second.
	CacheSeconds int `json:"cache_seconds"`
	// WatchedDirectories limits how many directories are watched for changes of the host.
	// 0 means the share of one session, a negative number none.
	WatchedDirectories int `json:"watched_directories"`
	// Unmapped accepts a kernel whose FUSE takes no notices, and whose programs can neither
	// map the files of the mounts nor execute them. Without it the server refuses to serve.
	Unmapped bool `json:"unmapped"`
}

// MountConfig is one governed directory or file. The server receives two descriptors
// for it: [DeviceName], which may come over [DevicesName], and [BackingName].
type MountConfig struct {
	Tag  string `json:"tag"`
	Path string `json:"path"` // inside the sandbox, absolute and clean
}

// Owner maps the owner of the backing to the user of the sandbox. Files of the outside
// ids are shown with the inside ids. Everything created in the mount belongs to the
// outside ids, unless User is set. Other owners are shown unchanged.
type Owner struct {
	InsideUID  uint32 `json:"inside_uid"`
	InsideGID  uint32 `json:"inside_gid"`
	OutsideUID uint32 `json:"outside_uid"`
	OutsideGID uint32 `json:"outside_gid"`
	// User is the server's own user unless that is root. An ordinary user gives files to
	// nobody: what the server makes keeps the owner that the kernel gave it. The user
	// namespace of the mount has one group. The kernel denies writing to a file whose group
	// has no number there (HAS_UNMAPPED_ID in inode_permission of linux/fs/namei.c), so every
	// group is shown as the inside one. The server's own open still needs the user's rights.
	User uint32 `json:"user,omitempty"`
}

// shown returns the ids inside of a file of the backing.
func (o Owner) shown(st *unix.Stat_t) (uid, gid uint32) {
	switch {
	case o.User == 0:
	case st.Uid == o.User:
		return o.InsideUID, o.InsideGID
	default:
		return shownID(st.Uid, o.OutsideUID, o.InsideUID), o.InsideGID
	}
	return shownID(st.Uid, o.OutsideUID, o.InsideUID), shownID(st.Gid, o.OutsideGID, o.InsideGID)
}

// DeviceName returns the name of the donated /dev/fuse descriptor of a mount. The
// mount must have the option default_permissions. It also needs allow_other unless the
// agent is the user that mounted.
func DeviceName(tag string) string { return "fuse:" + tag }

// BackingName returns the name of the donated descriptor of a mount's backing. That is
// a directory or a regular file, opened O_PATH or for reading.
func BackingName(tag string) string { return "backing:" + tag }

// maxMounts bounds the governed mounts of one session.
const maxMounts = 256

// check returns an error that names every invalid field of c.
func (c *Config) check() error {
	var problems []error
	if len(c.Mounts) == 0 || len(c.Mounts) > maxMounts {
		problems = append(problems, fmt.Errorf("%d mounts: from 1 to %d are served", len(c.Mounts), maxMounts))
	}
	tags := map[string]bool{}
	for _, mc := range c.Mounts {
		if mc.Tag == "" || tags[mc.Tag] {
			problems = append(problems, fmt.Errorf("mount tag %q is empty or used twice", mc.Tag))
		}
		tags[mc.Tag] = true
		if !strings.HasPrefix(mc.Path, "/") || path.Clean(mc.Path) != mc.Path {
			problems = append(problems, fmt.Errorf("mount path %q is not absolute and clean", mc.Path))
		}
	}
	if len(c.Policy) == 0 {
		problems = append(problems, errors.New("no policy"))
	}
	return errors.Join(problems...)
}

// load compiles the file rules of the policy from the sources in the message, which the
// supervisor has loaded as a whole. It reads no file.
func (c *Config) load() (Rules, error) {
	read := func(name string) ([]byte, error) {
		for _, s := range c.Policy[1:] {
			if s.Name == name {
				return s.Data, nil
			}
		}
		return nil, fmt.Errorf("policy file %s was not sent", name)
	}
	p, err := syntax.Load(policy.Source(c.Policy[0]), syntax.Options{Vars: c.Vars, OutsideWorkspace: true, FilesAlone: true, ReadFile: read})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// supported returns an error if the server cannot enforce a rule.
func supported(r Rules, trash bool) error {
	var problems []error
	for _, rule := range r.Rules(policy.GroupFile) {
		if rule.Effect == policy.SoftDelete && !trash {
			problems = append(problems, fmt.Errorf("%s: rule %s: soft_delete needs a trash directory", rule.Pos, rule.Name))
		}
	}
	return errors.Join(problems...)
}

// DevicesName is the name of a donated SOCK_SEQPACKET socket over which a server gets the
// devices of its mounts, by [SendDevice]. The server starts while the mounts are made.
const DevicesName = "devices"

// SendDevice passes the device of the mount with a tag. See [DeviceName].
func SendDevice(socket *os.File, tag string, device *os.File) error {
	for {
		err := unix.Sendmsg(int(socket.Fd()), []byte(tag), unix.UnixRights(int(device.Fd())), nil, unix.MSG_NOSIGNAL)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// errNoDevices says that the session was given up before it had all mounts.
var errNoDevices = errors.New("the supervisor sends no further devices")

// maxTag bounds the tag of a mount: it is a path.
const maxTag = unix.PathMax

// receiveDevices receives the devices of mounts for which none was donated.
func (s *server) receiveDevices(mounts []MountConfig) error {
	socket := s.donated[DevicesName]
	if socket == nil {
		return nil
	}
	delete(s.donated, DevicesName)
	defer socket.Close()
	for _, m := range mounts {
		for s.donated[DeviceName(m.Tag)] == nil {
			tag, device, err := receiveDevice(int(socket.Fd()))
			if err != nil {
				return err
			}
			if s.donated[DeviceName(tag)] != nil {
				device.Close()
				return fmt.Errorf("mount %s: two devices", tag)
			}
			s.donated[DeviceName(tag)] = device
		}
	}
	return nil
}

func receiveDevice(socket int) (tag string, device *os.File, err error) {
	name, control := make([]byte, maxTag), make([]byte, unix.CmsgSpace(4))
	for {
		n, used, _, _, err := unix.Recvmsg(socket, name, control, unix.MSG_CMSG_CLOEXEC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return "", nil, fmt.Errorf("receive a device: %w", err)
		}
		if n == 0 {
			return "", nil, errNoDevices
		}
		messages, err := unix.ParseSocketControlMessage(control[:used])
		if err != nil || len(messages) != 1 {
			return "", nil, fmt.Errorf("receive a device: %w", errors.Join(errMalformed, err))
		}
		fds, err := unix.ParseUnixRights(&messages[0])
		if err != nil || len(fds) != 1 {
			return "", nil, fmt.Errorf("receive a device: %w", errors.Join(errMalformed, err))
		}
		return string(name[:n]), os.NewFile(uintptr(fds[0]), string(name[:n])), nil
	}
}
