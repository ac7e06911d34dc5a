package notify

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/seccomp/target"
)

// These calls are decided by numbers in registers, which the kernel does not read again:
// to let them continue is sound. One race remains: a number can come to mean another
// process between decision and signal. In its own pid namespace a session can then reach
// only its own processes.

// signals answers calls that send signals, and those that set the scheduling of other
// processes: see sched.go.
type signals struct {
	images   *images
	record   *recorder
	approver *approver
	// sharedPIDs says that the session shares the pid namespace of the machine: only
	// its own processes get signals.
	sharedPIDs bool
}

func (h *signals) kill(c *call) (answer, error) {
	return h.answer(c, int(int32(c.Args[0])), int(int32(c.Args[1])))
}

// sigqueue is rt_sigqueueinfo and tkill, which do not know groups.
func (h *signals) sigqueue(c *call) (answer, error) {
	return h.toThread(c, int(int32(c.Args[0])), int(int32(c.Args[1])))
}

// tgkill is also rt_tgsigqueueinfo: both start with process, thread, signal. The kernel
// refuses a thread that is not of the process, so only the process is evaluated.
func (h *signals) tgkill(c *call) (answer, error) {
	if int32(c.Args[1]) <= 0 {
		return deny(unix.EINVAL), nil
	}
	return h.toThread(c, int(int32(c.Args[0])), int(int32(c.Args[2])))
}

// toThread is for calls whose number never means a group.
func (h *signals) toThread(c *call, number, signal int) (answer, error) {
	if number <= 0 {
		return deny(unix.EINVAL), nil
	}
	return h.answer(c, number, signal)
}

// toSelf reports whether a process signals itself and the rules allow that without
// an event. Most signals are such, and less is read for them.
func toSelf(c *call, t *target.Target, number, signal int) (bool, error) {
	if number <= 0 {
		return false, nil
	}
	name, own, err := t.Identify(number)
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
	return true, nil
}

const maxSignal = 64

// answer decides one signal to number, as kill(2) takes it.
func (h *signals) answer(c *call, number, signal int) (answer, error) {
	if signal < 0 || signal > maxSignal {
		return deny(unix.EINVAL), nil
	}
	if c.direct && number <= 0 {
		return noAnswer, errWaits // every process is looked at
	}
	t, err := target.OpenView(c.TID)
	if err != nil {
		return noAnswer, err
	}
	kept := false
	defer func() {
		if !kept {
			t.Close()
		}
	}()
	if own, err := toSelf(c, t, number, signal); err != nil {
		return noAnswer, err
	} else if own {
		return proceed, nil
	}
	s, err := h.sender(t)
	if err != nil {
		return noAnswer, err
	}
	targets, err := s.targets(number)
	if errors.Is(err, unix.ESRCH) || err == nil && len(targets) == 0 {
		return deny(unix.ESRCH), nil
	}
	if err != nil {
		return noAnswer, err
	}
	if !c.valid() {
		return noAnswer, errGone
	}
	j, err := h.evaluateAll(c, s, targets, signal)
	if err != nil {
		return noAnswer, err
	}
	if h.approver.decides(j.decision) {
		kept = true
		return h.approver.tasks.answer(c, func(c *call) (answer, error) {
			defer t.Close()
			return h.approve(c, s, j, number, targets)
		})
	}
	return h.apply(c, s, j)
}

// evaluateAll returns the strictest decision on the targets. Among permitted ones it
// returns one that needs more than to let the call go on.
func (h *signals) evaluateAll(c *call, s *sender, targets []target.Peer, signal int) (*signalDecision, error) {
	var first *signalDecision
	for _, p := range targets {
		j, err := h.evaluate(c, s, p, signal)
		if err != nil {
			return nil, err
		}
		approve := j.decision.Effect == policy.Approve
		if first == nil || !j.decision.Permits() || first.decision.Effect == policy.Allow {
			first = j
		}
		if !j.decision.Permits() && !approve && len(targets) > 1 {
			first.decision.Effect = policy.Deny // a signal to a part of a group cannot be redirected
			break
		}
	}
	return first, nil
}

// owner is fcntl with F_SETOWN: the kernel will signal a process or a group for a
// descriptor. It is evaluated now, for the signals that a descriptor sends by default.
func (h *signals) owner(c *call) (answer, error) {
	if request := int32(c.Args[1]); request != unix.F_SETOWN {
		return noAnswer, fmt.Errorf("fcntl request %d: %w", request, unix.EPERM)
	}
	t, err := target.OpenView(c.TID)
	if err != nil {
		return noAnswer, err
	}
	defer t.Close()
	s, err := h.sender(t)
	if err != nil {
		return noAnswer, err
	}
	targets, err := s.targets(int(int32(c.Args[2])))
	if errors.Is(err, unix.ESRCH) || err == nil && len(targets) == 0 {
		return deny(unix.ESRCH), nil
	}
	if err != nil {
		return noAnswer, err
	}
	if !c.valid() {
		return noAnswer, errGone
	}
	for _, p := range targets {
		for _, signal := range []unix.Signal{unix.SIGIO, unix.SIGURG} {
			j, err := h.evaluate(c, s, p, int(signal))
			if err != nil {
				return noAnswer, err
			}
			switch j.decision.Effect {
			case policy.Allow:
			case policy.Audit:
				if err := h.record.permit(s.event(j, "audit")); err != nil {
					return noAnswer, err
				}
			default:
				h.record.report(s.event(j, "deny"))
				return deny(unix.EPERM), nil
			}
		}
	}
	return proceed, nil
}

// sender is the process that sends a signal.
type sender struct {
	t      *target.Target
	self   target.Peer
	images *images
	nested bool // its processes are all in a pid namespace of the session
}

func (h *signals) sender(t *target.Target) (*sender, error) {
	s := &sender{t: t, images: h.images}
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

// relation is how a process is related to the sender, in the terms of signal_rules.
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
	_, err = s.images.of(t, id)
	return err == nil
}

// signalDecision is the decision on one target.
type signalDecision struct {
	request    *policy.SignalRequest
	peer       target.Peer
	decision   policy.Decision
	diagnostic policy.Diagnostic
}

func (h *signals) evaluate(c *call, s *sender, p target.Peer, signal int) (*signalDecision, error) {
	relation, err := s.relation(p)
	if err != nil {
		return nil, err
	}
	j := &signalDecision{
		peer:    p,
		request: &policy.SignalRequest{Signal: signal, Target: relation, PID: p.PID, Name: p.Name, SameUser: p.UID == s.self.UID},
	}
	if h.sharedPIDs && (relation == "external" || relation == "system") {
		j.diagnostic.Message = "not a process of this session"
		return j, nil // denied: the zero decision
	}
	j.decision, j.diagnostic = c.rules.Evaluate(j.request)
	return j, nil
}

// apply lets the call go on, only reports success, sends another signal, or denies.
func (h *signals) apply(c *call, s *sender, j *signalDecision) (answer, error) {
	decision := "deny"
	replacement := redirect(j.decision)
	switch j.decision.Effect {
	case policy.Allow:
		return proceed, nil
	case policy.Audit:
		decision = "audit"
	case policy.Absorb:
		decision = "absorb"
	case policy.Redirect:
		// Sent by the supervisor, who may more: only to what the sender could reach.
		if replacement != nil && j.request.SameUser {
			decision = "redirect"
		}
	}
	event := s.event(j, decision) // now, while the sender waits
	if decision == "deny" {
		h.record.report(event)
		return deny(unix.EPERM), nil
	}
	if err := h.record.permit(event); err != nil {
		return noAnswer, err
	}
	switch decision {
	case "audit":
		return proceed, nil
	case "redirect":
		a := success
		a.act = func() unix.Errno {
			if err := s.t.Signal(j.peer, unix.Signal(replacement.Signal)); err != nil {
				return unix.EPERM
			}
			return 0
		}
		c.reply(a) // now: act needs the sender
		return noAnswer, nil
	}
	return success, nil
}

// approve has a person decide a signal and applies the decision.
func (h *signals) approve(c *call, s *sender, j *signalDecision, number int, targets []target.Peer) (answer, error) {
	e := s.event(j, "deny")
	q := wire.Question{Command: e.Command, Kind: wire.AskSignal, Process: e.Process}
	q.Subject = wire.Name(e.Op + " to " + describe(targets, j))
	given, err := h.approver.wait(c, withRule(q, j.decision, j.diagnostic))
	if err != nil {
		return noAnswer, err
	}
	e.By = given.By
	if given.Allow {
		now, err := s.targets(number)
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return noAnswer, err
		}
		if !samePeers(now, targets) {
			given = wire.Answer{Reason: "it would now reach other processes"}
		}
	}
	if !given.Allow {
		e.Message, e.Hint = denialMessage(j.diagnostic, given), given.Hint(e.Hint)
		h.record.report(e)
		return deny(unix.EPERM), nil
	}
	e.Decision = "approve"
	if err := h.record.permit(e); err != nil {
		return noAnswer, err
	}
	return proceed, nil
}

// describe lists the processes that a signal would reach.
func describe(targets []target.Peer, j *signalDecision) string {
	if len(targets) == 1 {
		return fmt.Sprintf("%s %d %s", j.request.Target, targets[0].PID, targets[0].Name)
	}
	var names []string
	for _, p := range targets {
		names = append(names, fmt.Sprintf("%d %s", p.PID, p.Name))
	}
	return fmt.Sprintf("%d processes: %s", len(targets), strings.Join(names, ", "))
}

// samePeers reports whether a number still means the same processes.
func samePeers(now, then []target.Peer) bool {
	same := func(a, b target.Peer) bool { return a.PID == b.PID && a.Start == b.Start }
	return slices.EqualFunc(now, then, same)
}

// event describes a signal for the audit log.
func (s *sender) event(j *signalDecision, decision string) wire.Event {
	name := unix.SignalName(unix.Signal(j.request.Signal))
	if name == "" {
		name = strconv.Itoa(j.request.Signal)
	}
	e := wire.Event{
		Type:      wire.EventSignal,
		Op:        name,
		Target:    fmt.Sprintf("%s %d %s", j.request.Target, j.request.PID, j.request.Name),
		Decision:  decision,
		Mechanism: "seccomp",
		Message:   j.diagnostic.Message,
		Hint:      j.diagnostic.Hint,
		Rule:      j.diagnostic.At(),
	}
	if id, err := s.t.Identity(); err == nil {
		e.Process = process(s.t, id)
		if c, err := s.images.of(s.t, id); err == nil {
			e.Command = c.command.ID
		}
	}
	return e
}

// The calls below set the scheduling of one thread or process. They are decided by numbers,
// as signals are. They are notified only where the session has no pid namespace: threads
// of other processes, above all of the session init, must not be changed.

// schedule answers the calls whose first argument is the number.
func (h *signals) schedule(c *call) (answer, error) { return h.thread(c, int(int32(c.Args[0]))) }

// priority answers the calls whose second argument is the number.
func (h *signals) priority(c *call) (answer, error) { return h.thread(c, int(int32(c.Args[1]))) }

// thread lets a call go on if the number means a thread of the session.
func (h *signals) thread(c *call, number int) (answer, error) {
	if number < 0 {
		return deny(unix.ESRCH), nil
	}
	t, err := target.OpenView(c.TID)
	if err != nil {
		return noAnswer, err
	}
	defer t.Close()
	s, err := h.sender(t)
	if err != nil {
		return noAnswer, err
	}
	if number != 0 { // 0 in the low half of the register is the caller itself
		p, err := t.Peer(number)
		if errors.Is(err, unix.ESRCH) {
			return deny(unix.ESRCH), nil
		}
		if err != nil {
			return noAnswer, err
		}
		if p.PID != s.self.PID && !s.inside(p) {
			return deny(unix.EPERM), nil
		}
	}
	if !c.valid() {
		return noAnswer, errGone
	}
	return proceed, nil
}
