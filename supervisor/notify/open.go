package notify

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/seccomp/target"
	"agentsh/supervisor/notify/engine"
)

// Emulated is the directory below which no mount can hide a file, since each process has
// its own files there. Landlock keeps commands from opening them, and the supervisor
// emulates opens that the policy allows. Calls for every other path continue. If another
// thread exchanges the name then, Landlock still holds.
const Emulated = "/proc"

// keptFlags are the flags of an open for reading that have an effect on the open file.
// See open(2).
const keptFlags = unix.O_NONBLOCK | unix.O_NOATIME | unix.O_DIRECT | unix.O_SYNC |
	unix.O_APPEND | unix.O_ASYNC | unix.O_LARGEFILE | unix.O_NOCTTY

// nameFlags are the flags of opens that do not just read an existing file. The kernel
// answers them.
const nameFlags = unix.O_ACCMODE | unix.O_PATH | unix.O_DIRECTORY | unix.O_TRUNC

// opening is one call of the open family.
type opening struct {
	dir     int
	path    uint64 // address
	flags   int
	resolve uint64 // of openat2
}

// reading is one open for reading below [Emulated].
type reading struct {
	flags    int
	handle   *target.Handle
	event    wire.Event
	decision policy.Decision
	why      policy.Diagnostic
}

// procFiles answers opens: see [Emulated].
type procFiles struct {
	open     func(path string, flags int) (*os.File, error) // as the caller could, see [Config]
	images   *images
	record   *recorder
	approver *approver
}

func (h *procFiles) openat(c *call) (answer, error) {
	return h.answer(c, opening{dir: int(int32(c.Args[0])), path: c.Args[1], flags: int(uint32(c.Args[2]))}, nil)
}

// openat2 has its flags in memory. See openat2(2).
func (h *procFiles) openat2(c *call) (answer, error) {
	const size = 24 // struct open_how as Linux 5.6 has it
	if c.Args[3] < size {
		return proceed, nil // the kernel refuses it
	}
	return h.answer(c, opening{dir: int(int32(c.Args[0])), path: c.Args[1]}, func(t *target.Target, o *opening) error {
		how, err := t.Bytes(c.Args[2], size)
		if err != nil {
			return err
		}
		o.flags, o.resolve = int(binary.NativeEndian.Uint64(how)), binary.NativeEndian.Uint64(how[16:])
		return nil
	})
}

// forKernel reports whether the kernel answers a call. Nothing below Emulated can be
// written, made or listed by such a call.
func (o *opening) forKernel() bool {
	return o.flags&nameFlags != 0 || o.flags&(unix.O_CREAT|unix.O_EXCL) == unix.O_CREAT|unix.O_EXCL
}

// answer answers an open for reading. Below Emulated it is decided and carried out
// here, elsewhere the kernel goes on with it. more reads what the registers do not
// hold.
func (h *procFiles) answer(c *call, o opening, more func(*target.Target, *opening) error) (answer, error) {
	if o.forKernel() {
		return proceed, nil
	}
	t, err := target.Open(c.TID)
	if err != nil {
		return noAnswer, err
	}
	defer t.Close()
	if more != nil {
		if err := more(t, &o); err != nil {
			return noAnswer, err
		}
	}
	file := emulated(t, o)
	if file == nil {
		if !c.valid() {
			return noAnswer, errGone
		}
		return proceed, nil
	}
	r := &reading{flags: o.flags, handle: file}
	if err := h.evaluate(c, t, r, o.resolve); err != nil {
		file.Close()
		return noAnswer, err
	}
	if h.approver.decides(r.decision) {
		return h.approver.tasks.answerOnThread(c, func(c *call) (answer, error) { return h.approve(c, r) }, file.Close)
	}
	defer file.Close()
	switch r.decision.Effect {
	case policy.Allow, policy.Audit:
		return h.apply(r, r.decision.Effect)
	}
	return h.apply(r, policy.Deny)
}

// emulated returns the file below Emulated that a call means. It returns nil if the call
// means another file, or if the kernel answers it.
func emulated(t *target.Target, o opening) *target.Handle {
	if o.forKernel() {
		return nil
	}
	name, err := t.String(o.path, target.MaxPath)
	if err != nil || name == "" {
		return nil
	}
	h, err := t.Resolve(target.Lookup{Dir: o.dir, Path: name, NoFollow: o.flags&unix.O_NOFOLLOW != 0})
	if err != nil {
		return nil
	}
	if !strings.HasPrefix(h.Path, Emulated+"/") || h.Stat.Mode&unix.S_IFMT == unix.S_IFDIR {
		h.Close()
		return nil
	}
	return h
}

// evaluate decides on a file. The files of a thread are those of its process under
// another name: the stricter decision on both names holds.
func (h *procFiles) evaluate(c *call, t *target.Target, r *reading, resolve uint64) error {
	p, command, err := h.images.identify(t)
	if err != nil {
		return err
	}
	if !c.valid() {
		return errGone
	}
	if resolve != 0 {
		return fmt.Errorf("openat2 of %s: resolve %#x is not carried out where rules decide: %w", r.handle.Path, resolve, unix.EACCES)
	}
	for i, name := range procNames(r.handle.Path) {
		d, why := c.rules.EvaluateRead(name)
		if i == 0 || strictness(d.Effect) > strictness(r.decision.Effect) {
			r.decision, r.why = d, why
		}
	}
	r.event = wire.Event{
		Type: wire.EventFile, Command: command, Process: &p, Path: r.handle.Path, Op: policy.OpRead.String(),
		Mechanism: "seccomp", Rule: r.why.At(),
	}
	return nil
}

// procNames returns the names under which rules may mean a file below /proc. For
// /proc/P/task/T/x they include /proc/P/x and /proc/T/x.
func procNames(path string) []string {
	names := []string{path}
	part := strings.SplitN(path, "/", 6) // "", proc, P, task, T, x
	if len(part) == 6 && part[3] == "task" {
		names = append(names, strings.Join([]string{Emulated, part[2], part[5]}, "/"), strings.Join([]string{Emulated, part[4], part[5]}, "/"))
	}
	return names
}

// strictness orders the effects that rules below Emulated can have. All others deny.
func strictness(e policy.Effect) int {
	switch e {
	case policy.Allow:
		return 0
	case policy.Audit:
		return 1
	case policy.Approve:
		return 2
	}
	return 3
}

// apply records a decision and applies it.
func (h *procFiles) apply(r *reading, effect policy.Effect) (answer, error) {
	r.event.Decision = effect.String()
	switch effect {
	case policy.Allow:
		return h.openFile(r)
	case policy.Audit, policy.Approve:
		if err := h.record.permit(r.event); err != nil {
			return noAnswer, err
		}
		return h.openFile(r)
	}
	if r.event.Message == "" {
		r.event.Message, r.event.Hint = r.why.Message, r.why.Hint
	}
	h.record.report(r.event)
	return deny(unix.EACCES), nil
}

// openFile opens the file for the caller.
func (h *procFiles) openFile(r *reading) (answer, error) {
	f, err := h.open(r.handle.Path, r.flags&keptFlags)
	if errno, ok := errnoOf(err); ok {
		return deny(errno), nil
	}
	if err != nil {
		return noAnswer, err
	}
	if !sameFile(f, r.handle) {
		f.Close()
		return deny(unix.ENOENT), nil // its process has ended, and the number is another's
	}
	return fileAnswer(&engine.Descriptor{File: f, Exec: r.flags&unix.O_CLOEXEC == 0}), nil
}

func sameFile(f *os.File, h *target.Handle) bool {
	var s unix.Stat_t
	return unix.Fstat(int(f.Fd()), &s) == nil && h.Same(s.Dev, s.Ino)
}

// approve has a person decide, and applies the decision.
func (h *procFiles) approve(c *call, r *reading) (answer, error) {
	q := wire.Question{Command: r.event.Command, Kind: wire.AskFile, Process: r.event.Process}
	q.Subject = wire.Name(r.event.Op + " " + r.event.Path)
	given, err := h.approver.wait(c, withRule(q, r.decision, r.why))
	if err != nil {
		return noAnswer, err
	}
	r.event.By = given.By
	if given.Allow {
		return h.apply(r, policy.Approve)
	}
	r.event.Message, r.event.Hint = denialMessage(r.why, given), given.Hint(r.event.Hint)
	return h.apply(r, policy.Deny)
}
