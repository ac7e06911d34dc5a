package controller

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"sync"

	"agentsh/controller/runtime"
	"agentsh/internal/wire"
)

// Bounds of what a result lists; more is counted.
const (
	maxRefusals = 500
	maxPrograms = 500
	maxWhat     = 300 // bytes of one description
)

// Refusal is something the policy refused.
type Refusal struct {
	Type    string      `json:"type"` // exec, file, net, signal, ...
	What    string      `json:"what"`
	Rule    wire.RuleAt `json:"rule,omitzero"`
	Message string      `json:"message,omitempty"`
	Hint    string      `json:"hint,omitempty"`
	Count   int         `json:"count"`
}

// Program is a program that ran.
type Program struct {
	Name  string `json:"name"`
	Count int    `json:"count"`
}

// tally sums up the audit events of a run. Events come in order of their
// sequence numbers; one that was seen is not counted again, so the same log can
// be read from a stream and then from the file. Safe for concurrent use.
type tally struct {
	onRefusal func(Refusal) // called at the first of its kind

	mu       sync.Mutex
	seen     uint64 // last sequence number
	refusals []*Refusal
	byKey    map[Refusal]*Refusal
	programs []*Program
	byName   map[string]*Program
	commands int // programs started
	refused  int // in all
	gaps     int // sequence numbers that never came

	operators map[string]bool // commands that are none of the run
}

func newTally(onRefusal func(Refusal)) *tally {
	return &tally{onRefusal: onRefusal, byKey: map[Refusal]*Refusal{}, byName: map[string]*Program{}, operators: map[string]bool{}}
}

// read counts the events of an audit log.
func (t *tally) read(log io.Reader) error {
	d := json.NewDecoder(log)
	for {
		var e wire.Event
		err := d.Decode(&e)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read audit log: %w", err)
		}
		t.add(e)
	}
}

// add counts one event.
func (t *tally) add(e wire.Event) {
	first := t.count(e)
	if first != nil && t.onRefusal != nil {
		t.onRefusal(*first)
	}
}

func (t *tally) count(e wire.Event) *Refusal {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.Seq != 0 && e.Seq <= t.seen {
		return nil
	}
	if t.seen != 0 && e.Seq > t.seen+1 {
		t.gaps += int(e.Seq - t.seen - 1)
	}
	t.seen = e.Seq
	if e.Type == wire.EventCommand && e.By != "" {
		t.operators[e.Command] = true
	}
	if t.operators[e.Command] {
		return nil
	}
	if e.Decision == "deny" {
		return t.refuse(e)
	}
	if e.Type == wire.EventExec && e.Phase != "end" {
		t.ran(e)
	}
	return nil
}

func (t *tally) ran(e wire.Event) {
	t.commands++
	name := path.Base(e.Path)
	if e.Path == "" && len(e.Argv) > 0 {
		name = path.Base(e.Argv[0])
	}
	name = short(name)
	p := t.byName[name]
	if p == nil && len(t.programs) < maxPrograms {
		p = &Program{Name: name}
		t.byName[name] = p
		t.programs = append(t.programs, p)
	}
	if p != nil {
		p.Count++
	}
}

// refuse counts a refusal and returns it when it is the first of its kind.
func (t *tally) refuse(e wire.Event) *Refusal {
	t.refused++
	r := Refusal{Type: e.Type, What: what(e), Message: runtime.Clean(e.Message), Hint: runtime.Clean(e.Hint)}
	if e.Rule != nil {
		r.Rule = *e.Rule
		r.Rule.Name, r.Rule.File = runtime.Clean(r.Rule.Name), runtime.Clean(r.Rule.File)
	}
	if known := t.byKey[r]; known != nil {
		known.Count++
		return nil
	}
	if len(t.refusals) == maxRefusals {
		return nil
	}
	kept := r
	kept.Count = 1
	t.byKey[r] = &kept
	t.refusals = append(t.refusals, &kept)
	return &kept
}

// what describes an event. Names come from the agent and are cleaned.
func what(e wire.Event) string {
	var words []string
	switch {
	case len(e.Argv) > 0:
		words = e.Argv
	default:
		for _, w := range []string{e.Op, e.Path, e.Target} {
			if w != "" {
				words = append(words, w)
			}
		}
	}
	return short(strings.Join(words, " "))
}

func short(s string) string {
	s = runtime.Clean(strings.ReplaceAll(s, "\n", " "))
	if len(s) > maxWhat {
		s = strings.ToValidUTF8(s[:maxWhat], "") + "..."
	}
	return s
}

// into writes the sums into a result.
func (t *tally) into(r *Result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r.Refused, r.Programs = []Refusal{}, []Program{}
	for _, x := range t.refusals {
		r.Refused = append(r.Refused, *x)
	}
	for _, p := range t.programs {
		r.Programs = append(r.Programs, *p)
	}
	r.Commands, r.Refusals, r.AuditGaps = t.commands, t.refused, t.gaps
}
