package seccomp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	scmp "github.com/seccomp/libseccomp-golang"
	"golang.org/x/sys/unix"

	"agentsh/internal/memfile"
)

// newest is the highest system call number that was reviewed for this package. A newer call
// gets ENOSYS, as on a kernel without it.
const newest = 471 // rseq_slice_yield

// shared are calls that an older libseccomp does not know by name. Their numbers are equal
// on all architectures.
var shared = map[string]uint32{"open_tree_attr": unix.SYS_OPEN_TREE_ATTR}

// arches are the architectures a plan compiles for, by GOARCH.
var arches = map[string]struct {
	lib   scmp.ScmpArch
	audit uint32
}{
	"amd64": {scmp.ArchAMD64, unix.AUDIT_ARCH_X86_64},
	"arm64": {scmp.ArchARM64, unix.AUDIT_ARCH_AARCH64},
}

// Compile returns p as a BPF program for an architecture ("amd64", "arm64"): an
// array of struct sock_filter in the byte order of this machine. A caller of
// another architecture is killed, x32 included. See seccomp(2).
func (p Plan) Compile(arch string) ([]byte, error) {
	a, ok := arches[arch]
	if !ok {
		return nil, fmt.Errorf("compile filter: architecture %q is not amd64 or arm64", arch)
	}
	if err := anyAction(); err != nil {
		return nil, fmt.Errorf("compile filter for %s: %w", arch, err)
	}
	c, err := newCompiler(a.lib)
	if err != nil {
		return nil, fmt.Errorf("compile filter for %s: %w", arch, err)
	}
	defer trim()
	defer c.filter.Release()
	if err := c.addPlan(p); err != nil {
		return nil, fmt.Errorf("compile filter for %s: %w", arch, err)
	}
	body, err := export(c.filter)
	if err != nil {
		return nil, fmt.Errorf("export filter for %s: %w", arch, err)
	}
	return append(prologue(a.audit, c.late), body...), nil
}

// anyAction has libseccomp compile all actions of plans. It refuses those of which this
// kernel does not tell, but a program of [Traced] may do without them.
var anyAction = sync.OnceValue(func() error {
	const notifies = 6 // the API level with SCMP_ACT_NOTIFY and TSYNC: see seccomp_api_get(3)
	if level, err := scmp.GetAPI(); err != nil || level >= notifies {
		return err
	}
	return scmp.SetAPI(notifies)
})

// compiler adds rules to one filter.
type compiler struct {
	filter *scmp.ScmpFilter
	arch   scmp.ScmpArch
	native bool
	late   []lateCall
}

// lateCall is a call that libseccomp does not know. The result does not depend on its
// arguments.
type lateCall struct {
	nr     uint32
	answer uint32
}

func newCompiler(arch scmp.ScmpArch) (*compiler, error) {
	native, err := scmp.GetNativeArch()
	if err != nil {
		return nil, err
	}
	f, err := scmp.NewFilter(scmp.ActAllow)
	if err != nil {
		return nil, err
	}
	c := &compiler{filter: f, arch: arch, native: arch == native}
	if !c.native {
		err = errors.Join(f.AddArch(arch), f.RemoveArch(native))
	}
	// A binary tree of numbers: about 9 comparisons for each call instead of 90.
	err = errors.Join(err, f.SetBadArchAction(scmp.ActKillProcess), f.SetOptimize(2))
	if err != nil {
		f.Release()
		return nil, err
	}
	return c, nil
}

func (c *compiler) addPlan(p Plan) error {
	for _, r := range p.Refused {
		if err := c.addAll(r.Syscalls, r.When, scmp.ActErrno.SetReturnCode(int16(r.Errno)), retErrno|uint32(r.Errno)); err != nil {
			return err
		}
	}
	notified := slices.Clone(p.Notified)
	for _, r := range p.Reported {
		notified = append(notified, Notice{r.Syscalls, r.When})
	}
	for _, e := range p.Excepted {
		notified = append(notified, Notice{e.Syscalls, e.When})
	}
	for _, n := range notified {
		if err := c.addAll(n.Syscalls, n.When, scmp.ActNotify, retNotify); err != nil {
			return err
		}
	}
	return nil
}

// addAll adds the rules of calls; raw is the action as the kernel has it.
func (c *compiler) addAll(names []string, when []Case, action scmp.ScmpAction, raw uint32) error {
	for _, name := range names {
		if nr, ok := shared[name]; ok && len(when) == 0 {
			c.late = append(c.late, lateCall{nr, raw})
			continue
		}
		if err := c.add(name, action, when); err != nil {
			return err
		}
	}
	return nil
}

// add adds the rules of one call. A call that the architecture does not have
// needs none.
func (c *compiler) add(name string, action scmp.ScmpAction, when []Case) error {
	call, err := scmp.GetSyscallFromName(name)
	if err != nil {
		return fmt.Errorf("%s: libseccomp does not know it: %w", name, err)
	}
	if nr, err := scmp.GetSyscallFromNameByArch(name, c.arch); err != nil || nr < 0 {
		return nil
	}
	if len(when) == 0 {
		if err := c.filter.AddRule(call, action); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	for _, one := range when {
		conds, err := conditions(one)
		if err == nil {
			err = c.filter.AddRuleConditional(call, action, conds)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func conditions(c Case) ([]scmp.ScmpCondition, error) {
	const low = 0xffffffff
	var out []scmp.ScmpCondition
	for _, one := range c {
		var cond scmp.ScmpCondition
		var err error
		switch one.Op {
		case Is32:
			cond, err = scmp.MakeCondition(one.Arg, scmp.CompareMaskedEqual, low, one.Value)
		case Is:
			cond, err = scmp.MakeCondition(one.Arg, scmp.CompareEqual, one.Value)
		case Not:
			cond, err = scmp.MakeCondition(one.Arg, scmp.CompareNotEqual, one.Value)
		case Above:
			cond, err = scmp.MakeCondition(one.Arg, scmp.CompareGreater, one.Value)
		case HasBits:
			cond, err = scmp.MakeCondition(one.Arg, scmp.CompareMaskedEqual, one.Value, one.Value)
		case NoBits:
			cond, err = scmp.MakeCondition(one.Arg, scmp.CompareMaskedEqual, one.Value, 0)
		case Masked:
			mask, value := one.masked()
			cond, err = scmp.MakeCondition(one.Arg, scmp.CompareMaskedEqual, mask, value)
		default:
			err = fmt.Errorf("comparison %d is unknown", one.Op)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, cond)
	}
	return out, nil
}

// export returns the program of a filter. ExportBPFMem would need a newer
// libseccomp than distributions ship.
func export(f *scmp.ScmpFilter) ([]byte, error) {
	file, err := memfile.New("filter", 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if err := f.ExportBPF(file); err != nil {
		return nil, err
	}
	const largest = 4096 * sizeofInsn // BPF_MAXINSNS
	return io.ReadAll(io.NewSectionReader(file, 0, largest))
}

const sizeofInsn = 8

// BPF opcodes of the prologue. See linux/filter.h.
const (
	ldAbs = 0x20
	jeq   = 0x15
	jge   = 0x35
	ret   = 0x06

	offNr   = 0
	offArch = 4

	x32Bit    = 0x40000000 // __X32_SYSCALL_BIT
	retErrno  = 0x00050000 // SECCOMP_RET_ERRNO
	retNotify = 0x7fc00000 // SECCOMP_RET_USER_NOTIF
)

// prologue runs before libseccomp's program: it refuses late calls and every
// number beyond newest. Another architecture, and x32 numbers, fall through to
// libseccomp, which kills them.
func prologue(arch uint32, late []lateCall) []byte {
	var b []byte
	insn := func(code uint16, jt, jf uint8, k uint32) {
		b = binary.NativeEndian.AppendUint16(b, code)
		b = append(b, jt, jf)
		b = binary.NativeEndian.AppendUint32(b, k)
	}
	rest := uint8(2*len(late) + 4)
	insn(ldAbs, 0, 0, offArch)
	insn(jeq, 0, rest, arch)
	insn(ldAbs, 0, 0, offNr)
	for _, l := range late {
		insn(jeq, 0, 1, l.nr)
		insn(ret, 0, 0, l.answer)
	}
	insn(jge, 2, 0, x32Bit)
	insn(jge, 0, 1, newest+1)
	insn(ret, 0, 0, retErrno|uint32(unix.ENOSYS))
	return b
}
