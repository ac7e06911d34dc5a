package notify

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/seccomp"
	"agentsh/seccomp/target"
)

// Emulated is the directory below which no mount can stand for a file, since each
// process has its own ones there. Landlock keeps commands from opening what lies
// in it; the call goes on for every other path, so a name that another thread
// exchanges meanwhile leads to nothing that was not judged.
const Emulated = "/proc"

// keptFlags are the flags of an open for reading that mean something for the
// open file. See open(2).
const keptFlags = unix.O_NONBLOCK | unix.O_NOATIME | unix.O_DIRECT | unix.O_SYNC |
	unix.O_APPEND | unix.O_ASYNC | unix.O_LARGEFILE | unix.O_NOCTTY

// nameFlags are those that speak of something else than reading a file that is
// there: the kernel answers them.
const nameFlags = unix.O_ACCMODE | unix.O_PATH | unix.O_DIRECTORY | unix.O_TRUNC

// opening is one call of the open family.
type opening struct {
	dir     int
	path    uint64 // address
	flags   int
	resolve uint64 // of openat2
}

// reading is an open for reading that is decided here.
type reading struct {
	flags    int
	handle   *target.Handle
	event    wire.Event
	decision policy.Decision
	why      policy.Diagnostic
}

func (w *worker) openat(c *call) error {
	return w.open(c, opening{dir: int(int32(c.Args[0])), path: c.Args[1], flags: int(uint32(c.Args[2]))}, nil)
}

// openat2 has its flags in memory. See openat2(2).
func (w *worker) openat2(c *call) error {
	const size = 24 // struct open_how as Linux 5.6 has it
	if c.Args[3] < size {
		w.goOn(c) // the kernel refuses it
		return nil
	}
	return w.open(c, opening{dir: int(int32(c.Args[0])), path: c.Args[1]}, func(t *target.Target, o *opening) error {
		how, err := t.Bytes(c.Args[2], size)
		if err != nil {
			return err
		}
		o.flags, o.resolve = int(binary.NativeEndian.Uint64(how)), binary.NativeEndian.Uint64(how[16:])
		return nil
	})
}

// forKernel reports whether a call is none that rules decide: nothing below
// Emulated can be written to, made or listed by what it asks for.
func (o *opening) forKernel() bool {
	return o.flags&nameFlags != 0 || o.flags&(unix.O_CREAT|unix.O_EXCL) == unix.O_CREAT|unix.O_EXCL
}

// open answers an open for reading: below Emulated it is judged and carried out,
// elsewhere the kernel goes on with it. more reads what the registers do not hold.
func (w *worker) open(c *call, o opening, more func(*target.Target, *opening) error) error {
	if o.forKernel() {
		w.goOn(c)
		return nil
	}
	t, err := target.Open(c.TID)
	if err != nil {
		return err
	}
	defer t.Close()
	if more != nil {
		if err := more(t, &o); err != nil {
			return err
		}
	}
	h := emulated(t, o)
	if h == nil {
		if !c.valid() {
			return errGone
		}
		w.goOn(c)
		return nil
	}
	r := &reading{flags: o.flags, handle: h}
	if err := w.judgeRead(c, t, r, o.resolve); err != nil {
		h.Close()
		return err
	}
	if r.decision.Effect == policy.Approve && w.loop.cfg.Ask != nil {
		w.loop.askRead(c, r)
		return nil
	}
	defer h.Close()
	switch r.decision.Effect {
	case policy.Allow, policy.Audit:
		return w.answerRead(c, r, r.decision.Effect)
	}
	return w.answerRead(c, r, policy.Deny)
}

// emulated is the file below Emulated that a call means; nil: it means another
// one, or what it means is for the kernel to say.
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

// judgeRead decides on a file. The files of a thread are those of its process
// under another name: the stricter decision on both names holds.
func (w *worker) judgeRead(c *call, t *target.Target, r *reading, resolve uint64) error {
	p, command, err := w.who(t)
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
		Type: wire.EventFile, Session: w.loop.cfg.Session, Command: command, Process: &p, Path: r.handle.Path, Op: policy.OpRead.String(),
		Mechanism: "seccomp", Rule: ruleAt(r.why),
	}
	return nil
}

// procNames are the names of a file below /proc: /proc/P/task/T/x is /proc/P/x
// of another thread.
func procNames(path string) []string {
	names := []string{path}
	part := strings.SplitN(path, "/", 6) // "", proc, P, task, T, x
	if len(part) == 6 && part[3] == "task" {
		names = append(names, strings.Join([]string{Emulated, part[2], part[5]}, "/"), strings.Join([]string{Emulated, part[4], part[5]}, "/"))
	}
	return names
}

// strictness orders the effects that rules below Emulated may have. Another one
// is a denial.
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

// answerRead records a decision and carries it out.
func (w *worker) answerRead(c *call, r *reading, effect policy.Effect) error {
	r.event.Decision = effect.String()
	switch effect {
	case policy.Allow:
		return w.handOver(c, r)
	case policy.Audit, policy.Approve:
		if err := w.loop.cfg.Emit(r.event); err != nil {
			return fmt.Errorf("audit: %w", err)
		}
		return w.handOver(c, r)
	}
	if r.event.Message == "" {
		r.event.Message, r.event.Hint = r.why.Message, r.why.Hint
	}
	w.loop.emit(r.event)
	c.deny(unix.EACCES)
	return nil
}

// handOver opens the file and puts it into the caller's table.
func (w *worker) handOver(c *call, r *reading) error {
	f, err := w.loop.cfg.Open(r.handle.Path, r.flags&keptFlags)
	if errno, ok := asErrno(err); ok {
		c.deny(errno)
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if !sameFile(f, r.handle) {
		c.deny(unix.ENOENT) // its process has ended, and the number is another's
		return nil
	}
	if !c.claim() {
		return nil
	}
	_, err = w.loop.cfg.Listener.AddFD(c.ID, seccomp.AddFD{FD: int(f.Fd()), Number: -1, Exec: r.flags&unix.O_CLOEXEC == 0, Send: true})
	if errno, ok := asErrno(err); ok {
		err = w.loop.cfg.Listener.Deny(c.ID, errno) // its table is full
	}
	c.answer(err)
	return nil
}

func sameFile(f *os.File, h *target.Handle) bool {
	var s unix.Stat_t
	return unix.Fstat(int(f.Fd()), &s) == nil && h.Same(s.Dev, s.Ino)
}

// askRead has a person decide, while no worker waits. It takes over r.
func (l *Loop) askRead(c *call, r *reading) {
	l.running.Go(func() {
		defer r.handle.Close()
		w := &worker{loop: l}
		_ = onThread(func() error { // adding a descriptor needs signals blocked
			defer func() { w.recovered(c, recover()) }()
			if err := w.approveRead(c, r); err != nil {
				c.fault(err)
			}
			return nil
		})
	})
}

func (w *worker) approveRead(c *call, r *reading) error {
	q := wire.Question{Command: r.event.Command, Kind: wire.AskFile, Subject: r.event.Op + " " + r.event.Path, Process: r.event.Process}
	answer := w.loop.person(c, asked(q, r.decision, r.why))
	if !c.valid() {
		return errGone
	}
	r.event.By = answer.By
	if answer.Allow {
		return w.answerRead(c, r, policy.Approve)
	}
	r.event.Message = because(r.why, answer)
	return w.answerRead(c, r, policy.Deny)
}
