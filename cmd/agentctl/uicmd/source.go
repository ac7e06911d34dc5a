package uicmd

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"agentsh/cmd/agentctl/sandboxcmd"
	"agentsh/cmd/agentsh/asking"
	"agentsh/controller/batch"
	"agentsh/controller/record"
	"agentsh/controller/webui"
	"agentsh/internal/statedir"
	"agentsh/internal/text"
	"agentsh/internal/wire"
)

// Bounds of what the page shows.
const (
	maxListed  = 200 // batches, and runs
	maxMoments = 500 // of a run, besides its steps
	maxShown   = 2000
	liveTime   = 5 * time.Second // for the sandbox of a run to tell its events
)

// source is the state directory of this user, and the sandboxes of its runs.
type source struct{ state statedir.Dir }

// Overview implements [webui.Source].
func (s source) Overview(ctx context.Context) webui.Overview {
	out := webui.Overview{Batches: []webui.Batch{}, Runs: []webui.Brief{}, Questions: []webui.Question{}, Troubles: []string{}}
	trouble := func(err error) {
		if err != nil {
			out.Troubles = append(out.Troubles, text.Short(err.Error(), maxShown))
		}
	}
	batches, err := batch.List(s.state)
	trouble(err)
	for _, v := range batches[:min(len(batches), maxListed)] {
		c := v.Counts
		out.Batches = append(out.Batches, webui.Batch{
			ID: v.ID, Name: shown(v.Name), Status: shown(v.Status), Started: v.Created, All: c.All, Done: c.Done(),
			Failed: c.Failed() + c.Dropped, Running: c.Running, Waiting: c.Waiting,
		})
	}
	runs, err := record.List(s.state)
	trouble(err)
	for _, r := range runs[:min(len(runs), maxListed)] {
		out.Runs = append(out.Runs, brief(r))
	}
	questions, err := sandboxcmd.Questions(ctx)
	trouble(err)
	for _, q := range questions {
		rule := ""
		if q.Rule != nil {
			rule = shown(q.Rule.String())
		}
		out.Questions = append(out.Questions, webui.Question{
			ID: q.ID, Run: shown(cmp.Or(q.Run, q.Agent)), Kind: shown(q.Kind), What: asking.What(q.Question), Why: shown(q.Message), Rule: rule,
			Ends: q.Ends,
		})
	}
	return out
}

func shown(s string) string { return text.Short(s, maxShown) }

// brief is a run on one line.
func brief(r record.Run) webui.Brief {
	b := webui.Brief{
		ID: r.RunID, Name: shown(cmp.Or(r.Agent, filepath.Base(r.Harness))), Status: shown(r.Status), Live: r.Live, Backend: shown(r.Backend),
		Repo: shown(r.Repo), Started: r.Started, Ended: r.Ended,
	}
	if m := r.Batch; m != nil {
		b.Name, b.Batch = shown(m.Name), m.ID
	}
	if n := len(r.Steps); n > 0 && r.Live {
		b.Step = shown(r.Steps[n-1].Name)
	}
	return b
}

// Run implements [webui.Source].
func (s source) Run(ctx context.Context, id string) (webui.Run, error) {
	one, err := record.Find(s.state, id)
	if err != nil {
		return webui.Run{}, err
	}
	out := webui.Run{Brief: brief(one), Moments: []webui.Moment{}, Troubles: []string{}}
	for _, step := range one.Steps {
		if step.Error != "" {
			out.Error = shown(step.Name + ": " + step.Error)
		}
		out.Moments = append(out.Moments, webui.Moment{
			Time: step.Started, Kind: webui.KindStep, What: shown(step.Name), Ended: step.Ended, Error: shown(step.Error),
		})
	}
	if err := s.events(ctx, one, func(e wire.Event) { add(&out, len(one.Steps)+maxMoments, e) }); err != nil {
		out.Troubles = append(out.Troubles, shown(err.Error()))
	}
	slices.SortStableFunc(out.Moments, func(a, b webui.Moment) int { return a.Time.Compare(b.Time) })
	return out, nil
}

// add adds an event to a timeline, if it is a denial or an answer.
func add(to *webui.Run, most int, e wire.Event) {
	m := webui.Moment{Time: e.Time, Kind: webui.KindDenied, What: what(e), Hint: shown(e.Hint), Count: e.Count}
	switch {
	case e.Type == wire.EventApproval:
		m.Kind = webui.KindApproval
		if e.Phase == "end" {
			m.What = strings.TrimSpace(shown(e.Decision) + " by " + shown(cmp.Or(e.By, "nobody")) + ": " + m.What)
		}
	case e.Decision != "deny":
		return
	}
	if len(to.Moments) >= most {
		to.Left++
		return
	}
	if e.Rule != nil {
		m.Rule = shown(e.Rule.String())
	}
	to.Moments = append(to.Moments, m)
}

// what is what an event is about.
func what(e wire.Event) string {
	if e.Message != "" {
		return shown(e.Message)
	}
	if len(e.Argv) > 0 {
		return text.Args(e.Argv, maxShown)
	}
	return shown(strings.TrimSpace(strings.Join([]string{e.Type, e.Op, e.Path, e.Target}, " ")))
}

// events calls fn for the events of a run: of its sandbox while it goes on, then of the audit log
// that is stored with its record.
func (s source) events(ctx context.Context, one record.Run, fn func(wire.Event)) error {
	if one.Live {
		if one.Sandbox == "" {
			return nil
		}
		ctx, cancel := context.WithTimeoutCause(ctx, liveTime, fmt.Errorf("sandbox %s does not answer", one.Sandbox))
		defer cancel()
		client, err := sandboxcmd.Dial(ctx, one)
		if err != nil {
			return err
		}
		defer func() { _ = client.Close() }() // the sandbox goes on without us
		return client.Events(ctx, wire.EventRequest{SoFar: true}, func(e wire.Event) error {
			fn(e)
			return nil
		})
	}
	f, err := os.Open(filepath.Join(one.Path, record.AuditFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, wire.MaxMessage)
	for lines.Scan() {
		var e wire.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("the stored audit log of run %s ends early", one.RunID) // it has a bound
		}
		fn(e)
	}
	return lines.Err()
}

// Answer implements [webui.Source].
func (s source) Answer(ctx context.Context, a webui.Answer) error {
	return sandboxcmd.Answer(ctx, a.Question, wire.ApprovalAnswer{Allow: a.Allow, By: asking.Answerer(), Reason: a.Reason})
}
