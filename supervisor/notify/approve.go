package notify

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/seccomp/target"
)

// approval is a person's allow. It covers the program, its arguments and the
// content that the files had when it was asked for.
type approval struct {
	by      string
	content []content
}

// content is what a file held; fixed: nobody can change it.
type content struct {
	fixed  bool
	digest [sha256.Size]byte
}

// maxApproved is the largest program that is approved, in bytes: its content is
// read before the question and again when it was executed.
const maxApproved = 1 << 30

// contents reads what an approval is to cover.
func contents(files []*target.Handle) ([]content, error) {
	out := make([]content, len(files))
	for i, h := range files {
		var err error
		if out[i], err = contentOf(h); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func contentOf(h *target.Handle) (content, error) {
	fixed, err := h.ReadOnly()
	if err != nil || fixed {
		return content{fixed: fixed}, err
	}
	f, err := h.Open()
	if err != nil {
		return content{}, err
	}
	defer f.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, io.LimitReader(f, maxApproved+1))
	if err != nil {
		return content{}, fmt.Errorf("read %s: %w", h.Path, err)
	}
	if n > maxApproved {
		return content{}, fmt.Errorf("read %s: more than %d bytes cannot be approved: %w", h.Path, maxApproved, unix.EACCES)
	}
	var c content
	sum.Sum(c.digest[:0])
	return c, nil
}

// holds compares the files with what was approved. Without an approval there is
// nothing to compare.
func (p *approval) holds(files []*target.Handle) error {
	if p == nil {
		return nil
	}
	now, err := contents(files)
	if err != nil {
		return err
	}
	if !slices.Equal(now, p.content) {
		return fmt.Errorf("%w: a file was changed after it was approved", errSwitched)
	}
	return nil
}

// validInterval is how often it is looked whether a caller still waits for a
// person: the kernel tells nobody when it is killed.
const validInterval = 250 * time.Millisecond

// person asks a question for a call and waits, no longer than its caller does.
func (l *Loop) person(c *call, q wire.Question) wire.Answer {
	ctx, cancel := context.WithCancel(l.asking)
	var watching sync.WaitGroup
	watching.Go(func() {
		ticker := time.NewTicker(validInterval)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				if !c.valid() {
					cancel()
				}
			}
		}
	})
	answer := l.cfg.Ask(ctx, q)
	cancel()
	watching.Wait()
	return answer
}

// approveExec has a person decide an exec and carries the answer out.
func (w *worker) approveExec(c *call, a *attempt) error {
	before, err := contents(a.covered())
	if err != nil {
		return err
	}
	answer := w.loop.person(c, a.question(before))
	if !c.valid() {
		return errGone
	}
	if !answer.Allow {
		e := w.event(a, "deny")
		e.By, e.Message = answer.By, because(a.diagnostic, answer)
		w.loop.emit(e)
		c.deny(unix.EACCES)
		return nil
	}
	a.approval = &approval{by: answer.By, content: before}
	return w.verify(c, a)
}

// question is what a person is asked about an exec.
func (a *attempt) question(covered []content) wire.Question {
	q := wire.Question{
		Command: a.caller.command.ID, Kind: wire.AskExec, Subject: a.request.Path, Argv: a.argv, Cwd: a.request.Cwd,
		Process: &wire.Process{PID: a.process.PID, StartTime: a.process.Start, Exe: a.caller.path, Cwd: a.request.Cwd},
	}
	for i, h := range a.covered() {
		f := wire.QuestionFile{Path: h.Path}
		if !covered[i].fixed {
			f.SHA256 = hex.EncodeToString(covered[i].digest[:])
		}
		q.Files = append(q.Files, f)
	}
	return asked(q, a.decision, a.diagnostic)
}

// asked completes a question with its rule.
func asked(q wire.Question, d policy.Decision, why policy.Diagnostic) wire.Question {
	q.Rule, q.Message = ruleAt(why), why.Message
	if d.Rule != nil {
		q.TimeoutMS = d.Rule.ApproveTimeout.Milliseconds()
	}
	return q
}

// because says why something that had to be approved was not.
func because(d policy.Diagnostic, answer wire.Answer) string {
	why := "approval is needed: " + answer.Reason
	if answer.By != "" {
		why = answer.By + " did not approve"
	}
	if d.Message == "" {
		return why
	}
	return strings.TrimSuffix(d.Message, ".") + " (" + why + ")"
}

// askSignal has a person decide a signal and carries the answer out. It takes
// over the sender.
func (l *Loop) askSignal(c *call, s *sender, j *judgedSignal, number int, targets []target.Peer) {
	l.running.Go(func() {
		defer s.t.Close()
		defer func() { (&worker{loop: l}).recovered(c, recover()) }()
		if err := l.approveSignal(c, s, j, number, targets); err != nil {
			c.fault(err)
		}
	})
}

func (l *Loop) approveSignal(c *call, s *sender, j *judgedSignal, number int, targets []target.Peer) error {
	e := l.signalEvent(s, j, "deny")
	q := wire.Question{Command: e.Command, Kind: wire.AskSignal, Subject: e.Op + " to " + describe(targets, j), Process: e.Process}
	answer := l.person(c, asked(q, j.decision, j.diagnostic))
	if !c.valid() {
		return errGone
	}
	e.By = answer.By
	if answer.Allow {
		now, err := s.targets(number)
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
		if !samePeers(now, targets) {
			answer = wire.Answer{Reason: "it would now reach other processes"}
		}
	}
	if !answer.Allow {
		e.Message = because(j.diagnostic, answer)
		l.emit(e)
		c.deny(unix.EPERM)
		return nil
	}
	e.Decision = "approve"
	if err := l.cfg.Emit(e); err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	if c.claim() {
		c.answer(l.cfg.Listener.Continue(c.ID))
	}
	return nil
}

// describe names the processes that a signal would reach.
func describe(targets []target.Peer, j *judgedSignal) string {
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
