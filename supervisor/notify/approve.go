package notify

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
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

// approval is a person's allow. It covers the program, its arguments and the content that
// the files had when the question was asked.
type approval struct {
	by      string
	content []content
}

// content is the content of a file. If fixed is set, no command can change it.
type content struct {
	fixed  bool
	digest [sha256.Size]byte
}

// maxApproved is the largest program that is approved, in bytes: its content is
// read before the question and again when it was executed.
const maxApproved = 1 << 30

// contents reads the content of the files that an approval covers.
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

// check compares the files with those that were approved. A nil approval has nothing to
// compare.
func (p *approval) check(files []*target.Handle) error {
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

// approver has a person decide calls.
type approver struct {
	ask   func(context.Context, wire.Question) wire.Answer // nil: nobody can be asked
	tasks *tasks
}

// decides reports whether a person is to be asked about a decision.
func (p *approver) decides(d policy.Decision) bool { return d.Effect == policy.Approve && p.ask != nil }

// validInterval is the time between two checks that the caller still waits. The
// kernel does not report that it was killed.
const validInterval = 250 * time.Millisecond

// wait asks a question about a call. It returns when there is an answer or when the
// caller has ended, or will once its call is answered. The error is then errGone.
func (p *approver) wait(c *call, q wire.Question) (wire.Answer, error) {
	ctx, cancel := context.WithCancel(p.tasks.ctx)
	waits := true
	var watching sync.WaitGroup
	watching.Go(func() {
		ticker := time.NewTicker(validInterval)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				if waits = c.valid() && !target.Dying(c.TID); !waits {
					cancel()
					return
				}
			}
		}
	})
	answer := p.ask(ctx, q)
	cancel()
	watching.Wait()
	if !waits || !c.valid() {
		return answer, errGone
	}
	return answer, nil
}

// approve has a person decide an exec and applies the decision.
func (h *execs) approve(c *call, a *attempt) (answer, error) {
	before, err := contents(a.covered())
	if err != nil {
		return noAnswer, err
	}
	given, err := h.approver.wait(c, a.question(before))
	if err != nil {
		return noAnswer, err
	}
	if !given.Allow {
		e := a.event("deny")
		e.By, e.Message, e.Hint = given.By, denialMessage(a.diagnostic, given), given.Hint(e.Hint)
		h.record.report(e)
		return deny(unix.EACCES), nil
	}
	a.approval = &approval{by: given.By, content: before}
	return h.verify(c, a)
}

// question is the question to a person about an exec.
func (a *attempt) question(covered []content) wire.Question {
	q := wire.Question{
		Command: a.caller.command.ID, Kind: wire.AskExec, Subject: wire.Name(a.request.Path), Argv: a.argv,
		Cwd:     wire.Name(a.request.Cwd),
		Process: &wire.Process{PID: a.process.PID, StartTime: a.process.Start, Exe: a.caller.path, Cwd: a.request.Cwd},
	}
	for i, h := range a.covered() {
		f := wire.QuestionFile{Path: wire.Name(h.Path)}
		if !covered[i].fixed {
			f.SHA256 = hex.EncodeToString(covered[i].digest[:])
		}
		q.Files = append(q.Files, f)
	}
	return withRule(q, a.decision, a.diagnostic)
}

// withRule adds the rule that requires approval to a question.
func withRule(q wire.Question, d policy.Decision, why policy.Diagnostic) wire.Question {
	q.Rule, q.Message = why.At(), why.Message
	if d.Rule != nil {
		q.TimeoutMS = d.Rule.ApproveTimeout.Milliseconds()
	}
	return q
}

// denialMessage returns why a request that needs approval was denied.
func denialMessage(d policy.Diagnostic, answer wire.Answer) string {
	why := "approval is needed: " + answer.Reason
	if answer.By != "" {
		why = answer.By + " did not approve"
		if answer.Reason != "" {
			why += ": " + answer.Reason
		}
	}
	if d.Message == "" {
		return why
	}
	return strings.TrimSuffix(d.Message, ".") + " (" + why + ")"
}
