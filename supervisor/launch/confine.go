package launch

// extern int agentsh_confined;
import "C"

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentsh/internal/memfile"
	"agentsh/supervisor/probe/trial"
)

// Confinement restricts a server process. It takes effect before the process has threads:
// see confine.c.
type Confinement struct {
	// Filter is a BPF program from seccomp.Plan.Compile.
	Filter []byte
	// Trees are the files and directories that the process may open, with everything
	// below them. Their paths do not matter.
	Trees []Tree
	// Capabilities are the bits of the capabilities that the process keeps, if it has them.
	Capabilities uint64
}

// Tree grants file rights of Landlock at and below an open directory or file.
type Tree struct {
	File   *os.File
	Access uint64
}

const (
	confinementMagic = "agcf"
	hasRuleset       = 1
	netRights        = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
	fileRights       = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_READ_FILE |
		unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV // the rights that a rule about a file may have
)

// files returns the descriptors 3 and 4 of the process. On a kernel without Landlock the
// second one is /dev/null.
func (c *Confinement) files() (spec, ruleset *os.File, err error) {
	spec, err = memfile.New("confinement", unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, nil, fmt.Errorf("confinement: %w", err)
	}
	abi := LandlockABI()
	var flags uint32
	if abi > 0 {
		flags = hasRuleset
	}
	var b bytes.Buffer
	b.WriteString(confinementMagic)
	b.Write(binary.NativeEndian.AppendUint32(nil, flags))
	b.Write(binary.NativeEndian.AppendUint64(nil, c.Capabilities))
	b.Write(c.Filter)
	if _, err = spec.Write(b.Bytes()); err == nil {
		err = memfile.Seal(spec)
	}
	if err == nil && abi == 0 {
		ruleset, err = os.Open(os.DevNull)
	} else if err == nil {
		ruleset, err = c.ruleset(abi)
	}
	if err != nil {
		spec.Close()
		return nil, nil, fmt.Errorf("confinement: %w", err)
	}
	return spec, ruleset, nil
}

// rulesetAttr is struct landlock_ruleset_attr. An older kernel accepts it if the fields
// that it does not know are zero.
type rulesetAttr struct{ files, net, scoped uint64 }

// ruleset makes the Landlock ruleset. See landlock(7).
func (c *Confinement) ruleset(abi int) (*os.File, error) {
	attr := rulesetAttr{files: supported(abi)}
	if abi >= trial.LandlockNet {
		attr.net = netRights
	}
	if abi >= trial.LandlockScopes {
		attr.scoped = landlockScopes
	}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return nil, fmt.Errorf("create Landlock ruleset: %w", errno)
	}
	ruleset := os.NewFile(fd, "ruleset")
	for _, t := range c.Trees {
		var st unix.Stat_t
		if err := unix.Fstat(int(t.File.Fd()), &st); err != nil {
			ruleset.Close()
			return nil, fmt.Errorf("stat %s: %w", t.File.Name(), err)
		}
		access := t.Access & supported(abi)
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			access &= fileRights
		}
		rule := unix.LandlockPathBeneathAttr{Allowed_access: access, Parent_fd: int32(t.File.Fd())}
		if _, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, fd, unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&rule)), 0, 0,
			0); errno != 0 {
			ruleset.Close()
			return nil, fmt.Errorf("add Landlock rule for %s: %w", t.File.Name(), errno)
		}
	}
	return ruleset, nil
}

// firstDonation is the descriptor with the names of the others.
func firstDonation() int {
	if C.agentsh_confined != 0 {
		return donationsFD + 2
	}
	return donationsFD
}

// Confined reports whether this process was confined when it started.
func Confined() bool { return C.agentsh_confined != 0 }
