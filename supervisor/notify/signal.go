package notify

import (
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/seccomp/target"
)

// The calls below are decided on numbers alone, which the kernel does not read
// again, so that letting the call continue is sound. What remains is that a
// number can come to mean another process between the decision and the signal;
// in a pid namespace of its own a session meets only its own processes then.

func (w *worker) killProcess(c *call) error {
	return w.signal(c, int(int32(c.Args[0])), int(int32(c.Args[1])))
}

// sigqueue is rt_sigqueueinfo and tkill, which do not know groups.
func (w *worker) sigqueue(c *call) error {
	return w.signalThread(c, int(int32(c.Args[0])), int(int32(c.Args[1])))
}

// tgkill is also rt_tgsigqueueinfo: both start with process, thread, signal. The
// kernel refuses a thread that is not of the process, so the process is judged.
func (w *worker) tgkill(c *call) error {
	if int32(c.Args[1]) <= 0 {
		c.deny(unix.EINVAL)
		return nil
	}
	return w.signalThread(c, int(int32(c.Args[0])), int(int32(c.Args[2])))
}

// signalThread is for calls whose number never means a group.
func (w *worker) signalThread(c *call, number, signal int) error {
	if number <= 0 {
		c.deny(unix.EINVAL)
		return nil
	}
	return w.signal(c, number, signal)
}

// own lets a signal go on that its sender sends to itself, as most are, and that
// is permitted without more ado. It reports whether that is so.
func (w *worker) own(c *call, t *target.Target, number, signal int) (bool, error) {
	if number <= 0 {
		return false, nil
	}
	name, own, err := t.Own(number)
	if err != nil || !own {
		return false, err
	}
	request := &policy.SignalRequest{Signal: signal, Target: "self", PID: number, Name: name, SameUser: true}
	if decision, _ := c.rules.Evaluate(request); decision.Effect != policy.Allow {
		return false, nil
	}
	if !c.valid() {
		return false, errGone
	}
	if c.claim() {
		c.answer(w.loop.cfg.Listener.Continue(c.ID))
	}
	return true, nil
}

const maxSignal = 64

// signal judges one signal to number, as kill(2) takes it.
func (w *worker) signal(c *call, number, signal int) error {
	if signal < 0 || signal > maxSignal {
		c.deny(unix.EINVAL)
		return nil
	}
	t, err := target.OpenView(c.TID)
	if err != nil {
		return err
	}
	asked := false
	defer func() {
		if !asked {
			t.Close()
		}
	}()
	if done, err := w.own(c, t, number, signal); done || err != nil {
		return err
	}
	s, err := w.loop.sender(t)
	if err != nil {
		return err
	}
	targets, err := s.targets(number)
	if errors.Is(err, unix.ESRCH) || err == nil && len(targets) == 0 {
		c.deny(unix.ESRCH)
		return nil
	}
	if err != nil {
		return err
	}
	if !c.valid() {
		return errGone
	}
	var first *judgedSignal
	for _, p := range targets {
		j, err := c.judgeSignal(s, p, signal)
		if err != nil {
			return err
		}
		// The strictest counts; among the permitted the one that is not plain.
		approve := j.decision.Effect == policy.Approve
		if first == nil || !j.decision.Permits() || first.decision.Effect == policy.Allow {
			first = j
		}
		if !j.decision.Permits() && !approve && len(targets) > 1 {
			first.decision.Effect = policy.Deny // a part of a group cannot be redirected
			break
		}
	}
	if first.decision.Effect == policy.Approve && w.loop.cfg.Ask != nil {
		asked = true
		w.loop.askSignal(c, s, first, number, targets)
		return nil
	}
	return w.answerSignal(c, s, first)
}

// owner is fcntl with F_SETOWN: the kernel will signal a process, or a group, for
// a descriptor. It is judged now, for the signals that it gets by default.
func (w *worker) owner(c *call) error {
	if request := int32(c.Args[1]); request != unix.F_SETOWN {
		return fmt.Errorf("fcntl request %d: %w", request, unix.EPERM)
	}
	t, err := target.OpenView(c.TID)
	if err != nil {
		return err
	}
	defer t.Close()
	s, err := w.loop.sender(t)
	if err != nil {
		return err
	}
	targets, err := s.targets(int(int32(c.Args[2])))
	if errors.Is(err, unix.ESRCH) || err == nil && len(targets) == 0 {
		c.deny(unix.ESRCH)
		return nil
	}
	if err != nil {
		return err
	}
	if !c.valid() {
		return errGone
	}
	for _, p := range targets {
		for _, signal := range []unix.Signal{unix.SIGIO, unix.SIGURG} {
			j, err := c.judgeSignal(s, p, int(signal))
			if err != nil {
				return err
			}
			switch j.decision.Effect {
			case policy.Allow:
			case policy.Audit:
				if err := w.loop.cfg.Emit(w.loop.signalEvent(s, j, "audit")); err != nil {
					return fmt.Errorf("audit: %w", err)
				}
			default:
				w.loop.emit(w.loop.signalEvent(s, j, "deny"))
				c.deny(unix.EPERM)
				return nil
			}
		}
	}
	w.goOn(c)
	return nil
}

// sender is the process that sends a signal.
type sender struct {
	t      *target.Target
	self   target.Peer
	loop   *Loop
	nested bool // its processes are all in a pid namespace of the session
}

func (l *Loop) sender(t *target.Target) (*sender, error) {
	s := &sender{t: t, loop: l}
	var err error
	if s.self, err = t.Self(); err != nil {
		return nil, err
	}
	s.nested, err = t.Nested()
	return s, err
}

// targets are the processes that number means to the sender.
func (s *sender) targets(number int) ([]target.Peer, error) {
	if number == s.self.PID {
		return []target.Peer{s.self}, nil
	}
	if number > 0 {
		p, err := s.t.Peer(number)
		return []target.Peer{p}, err
	}
	group := -number
	if number == 0 {
		group = s.self.Group
	}
	all, err := s.t.Peers()
	if err != nil {
		return nil, err
	}
	var list []target.Peer
	for _, p := range all {
		// kill(-1) spares the first process and, on Linux, the sender.
		if number == -1 && p.PID != 1 && p.PID != s.self.PID || number != -1 && p.Group == group {
			list = append(list, p)
		}
	}
	return list, nil
}

// relation is what a process is to the sender, in the words of signal_rules.
func (s *sender) relation(p target.Peer) (string, error) {
	switch {
	case p.PID == s.self.PID:
		return "self", nil
	case p.PID == 1:
		return "system", nil
	case p.Parent == s.self.PID:
		return "children", nil
	case p.PID == s.self.Parent && s.inside(p):
		return "parent", nil
	case !s.inside(p):
		return "external", nil
	case p.Parent == s.self.Parent && p.Parent != 1:
		return "siblings", nil
	}
	at := p
	for range maxParents {
		if at.Parent == s.self.PID {
			return "descendants", nil
		}
		if at.Parent <= 1 {
			return "session", nil
		}
		parent, err := s.t.Peer(at.Parent)
		if errors.Is(err, unix.ESRCH) {
			return "session", nil // it ended meanwhile, and its child has another parent
		}
		if err != nil {
			return "", err
		}
		at = parent
	}
	return "", errors.New("more parents than are followed")
}

// inside reports whether a process belongs to the session.
func (s *sender) inside(p target.Peer) bool {
	if s.nested {
		return true
	}
	// Without a pid namespace numbers are the supervisor's own.
	t, err := target.OpenView(p.PID)
	if err != nil {
		return false
	}
	defer t.Close()
	id, err := t.Identity()
	if err != nil || id.Start != p.Start {
		return false
	}
	_, err = s.loop.images.of(t, id)
	return err == nil
}

// judgedSignal is one target with its decision.
type judgedSignal struct {
	request    *policy.SignalRequest
	peer       target.Peer
	decision   policy.Decision
	diagnostic policy.Diagnostic
}

func (c *call) judgeSignal(s *sender, p target.Peer, signal int) (*judgedSignal, error) {
	relation, err := s.relation(p)
	if err != nil {
		return nil, err
	}
	j := &judgedSignal{
		peer:    p,
		request: &policy.SignalRequest{Signal: signal, Target: relation, PID: p.PID, Name: p.Name, SameUser: p.UID == s.self.UID},
	}
	if c.loop.cfg.Shared && (relation == "external" || relation == "system") {
		j.diagnostic.Message = "not a process of this session"
		return j, nil // denied: the zero decision
	}
	j.decision, j.diagnostic = c.rules.Evaluate(j.request)
	return j, nil
}

// answerSignal lets the call go on, pretends, sends another signal, or denies.
func (w *worker) answerSignal(c *call, s *sender, j *judgedSignal) error {
	listener := w.loop.cfg.Listener
	word, effect := "deny", j.decision.Effect
	replacement := redirect(j.decision)
	switch effect {
	case policy.Allow:
		if c.claim() {
			c.answer(listener.Continue(c.ID))
		}
		return nil
	case policy.Audit:
		word = "audit"
	case policy.Absorb:
		word = "absorb"
	case policy.Redirect:
		// Sent by the supervisor, who may more: only to what the sender could reach.
		if replacement != nil && j.request.SameUser {
			word = "redirect"
		}
	}
	event := w.loop.signalEvent(s, j, word) // now, while the sender waits
	if word == "deny" {
		w.loop.emit(event)
	} else if err := w.loop.cfg.Emit(event); err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	if !c.claim() {
		return nil
	}
	switch word {
	case "audit":
		c.answer(listener.Continue(c.ID))
	case "absorb":
		c.answer(listener.Value(c.ID, 0))
	case "redirect":
		if err := s.t.Signal(j.peer, unix.Signal(replacement.Signal)); err != nil {
			c.answer(listener.Deny(c.ID, unix.EPERM))
			return nil
		}
		c.answer(listener.Value(c.ID, 0))
	default:
		c.answer(listener.Deny(c.ID, unix.EPERM))
	}
	return nil
}

func (l *Loop) signalEvent(s *sender, j *judgedSignal, word string) wire.Event {
	name := unix.SignalName(unix.Signal(j.request.Signal))
	if name == "" {
		name = strconv.Itoa(j.request.Signal)
	}
	e := wire.Event{
		Type:      wire.EventSignal,
		Session:   l.cfg.Session,
		Op:        name,
		Target:    fmt.Sprintf("%s %d %s", j.request.Target, j.request.PID, j.request.Name),
		Decision:  word,
		Mechanism: "seccomp",
		Message:   j.diagnostic.Message,
		Hint:      j.diagnostic.Hint,
		Rule:      ruleAt(j.diagnostic),
	}
	if id, err := s.t.Identity(); err == nil {
		e.Process = &wire.Process{PID: id.PID, StartTime: id.Start, Exe: s.t.Exe(), Cwd: s.t.Cwd()}
		if c, err := s.loop.images.of(s.t, id); err == nil {
			e.Command = c.command.ID
		}
	}
	return e
}
