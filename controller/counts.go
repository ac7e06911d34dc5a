package controller

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"sync"

	"agentsh/controller/hook"
	"agentsh/controller/runtime"
	"agentsh/internal/wire"
)

// Bounds of the lists of a result. The counts include what is not listed.
const (
	maxRefusals = 500
	maxPrograms = 500
	maxWhat     = 300 // bytes of one description
	maxReason   = 4096
)

// Bounds of the commands of operators. Their list of actions is full before, and
// agentsh makes no longer ids.
const (
	maxOperators = 50_000
	maxCommandID = 128
)

// Refusal is something the policy denied, with the number of times.
type Refusal struct {
	Type    string      `json:"type"` // exec, file, net, signal, hook, ...
	Hook    string      `json:"hook,omitempty"`
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

// counts counts the audit events of a run. Events arrive in the order of their
// sequence numbers, and each number is counted once. So the same log can be
// read from a stream and then from the file. Safe for concurrent use.
type counts struct {
	onRefusal func(Refusal) // called for the first refusal of each kind
	observer  Observer      // gets each event

	mu       sync.Mutex
	seen     uint64 // last sequence number
	refusals []*Refusal
	byKey    map[Refusal]*Refusal
	programs []*Program
	byName   map[string]*Program
	commands int // programs started
	refused  int // all refusals
	gaps     int // missing sequence numbers

	rewritten []*Rewritten

	operators map[string]bool // commands of operators, which are not counted
}

func newCounts(onRefusal func(Refusal)) *counts {
	return &counts{
		onRefusal: onRefusal, observer: nobody{}, byKey: map[Refusal]*Refusal{}, byName: map[string]*Program{}, operators: map[string]bool{},
	}
}

// read counts the events of an audit log.
func (c *counts) read(log io.Reader) error {
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, wire.MaxMessage)
	for n := 1; lines.Scan(); n++ {
		var e wire.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("read audit log: line %d: %w", n, err)
		}
		c.add(e)
	}
	err := lines.Err()
	if errors.Is(err, bufio.ErrTooLong) {
		err = fmt.Errorf("a line has more than %d bytes", wire.MaxMessage)
	}
	if err != nil {
		return fmt.Errorf("read audit log: %w", err)
	}
	return nil
}

// add counts one event.
func (c *counts) add(e wire.Event) {
	first, fresh := c.count(e)
	if fresh {
		c.observer.Event(e)
	}
	if first != nil && c.onRefusal != nil {
		c.onRefusal(*first)
	}
}

// count counts an event. fresh reports whether it was not counted before.
func (c *counts) count(e wire.Event) (first *Refusal, fresh bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.Seq != 0 && e.Seq <= c.seen {
		return nil, false
	}
	if c.seen != 0 && e.Seq > c.seen+1 {
		c.gaps += int(e.Seq - c.seen - 1)
	}
	c.seen = e.Seq
	if e.Type == wire.EventCommand && e.By != "" && len(e.Command) <= maxCommandID && len(c.operators) < maxOperators {
		c.operators[e.Command] = true
	}
	if c.operators[e.Command] {
		return nil, true
	}
	if e.Decision == "deny" {
		return c.refuse(e), true
	}
	if e.Type == wire.EventExec && e.Phase != "end" {
		c.program(e)
	}
	return nil, true
}

func (c *counts) program(e wire.Event) {
	c.commands++
	name := path.Base(e.Path)
	if e.Path == "" && len(e.Argv) > 0 {
		name = path.Base(e.Argv[0])
	}
	name = short(name)
	p := c.byName[name]
	if p == nil && len(c.programs) < maxPrograms {
		p = &Program{Name: name}
		c.byName[name] = p
		c.programs = append(c.programs, p)
	}
	if p != nil {
		p.Count++
	}
}

// refuse counts a refusal. It returns the refusal if it is the first of its
// kind.
func (c *counts) refuse(e wire.Event) *Refusal {
	r := Refusal{Type: e.Type, What: what(e), Message: clean(e.Message), Hint: clean(e.Hint)}
	if e.Rule != nil {
		r.Rule = *e.Rule
		r.Rule.Name, r.Rule.File = clean(r.Rule.Name), clean(r.Rule.File)
	}
	return c.addRefusal(r)
}

// addRefusal counts a refusal. It returns the refusal if it is the first of its kind.
func (c *counts) addRefusal(r Refusal) *Refusal {
	c.refused++
	if known := c.byKey[r]; known != nil {
		known.Count++
		return nil
	}
	if len(c.refusals) == maxRefusals {
		return nil
	}
	first := r
	first.Count = 1
	c.byKey[r] = &first
	c.refusals = append(c.refusals, &first)
	return &first
}

// hook counts an act of a hook.
func (c *counts) hook(e hook.Entry) {
	name, reason := short(e.Hook), short(e.Reason)
	c.mu.Lock()
	var first *Refusal
	if e.Count <= 0 {
		rule := wire.RuleAt{Name: short(e.Rule)}
		first = c.addRefusal(Refusal{Type: refusedByHook, Hook: name, What: short(e.Tool), Rule: rule, Message: reason})
	} else {
		c.addRewritten(Rewritten{Hook: name, Reason: reason, Count: min(e.Count, maxParts)})
	}
	c.mu.Unlock()
	if first != nil && c.onRefusal != nil {
		c.onRefusal(*first)
	}
}

// refusedByHook is the type of refusals by a hook.
const refusedByHook = "hook"

// maxParts bounds the count of one entry in the log of the hooks.
const maxParts = 1_000_000

func (c *counts) addRewritten(x Rewritten) {
	for _, known := range c.rewritten {
		if known.Hook == x.Hook && known.Reason == x.Reason {
			known.Count += x.Count
			return
		}
	}
	if len(c.rewritten) < maxRefusals {
		c.rewritten = append(c.rewritten, &x)
	}
}

// what describes an event. It cleans names, because the agent chooses them.
func what(e wire.Event) string {
	var parts []string
	switch {
	case len(e.Argv) > 0:
		parts = e.Argv
	default:
		for _, w := range []string{e.Op, e.Path, e.Target} {
			if w != "" {
				parts = append(parts, w)
			}
		}
	}
	return short(strings.Join(parts, " "))
}

func short(s string) string { return cut(runtime.Clean(strings.ReplaceAll(s, "\n", " ")), maxWhat) }

// clean cleans a reason of the supervisor.
func clean(s string) string { return cut(runtime.Clean(s), maxReason) }

func cut(s string, most int) string {
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}

// into writes the counts into a result.
func (c *counts) into(r *Result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.Refused, r.Programs = []Refusal{}, []Program{}
	for _, x := range c.refusals {
		r.Refused = append(r.Refused, *x)
	}
	for _, x := range c.rewritten {
		r.Hooks.Rewritten = append(r.Hooks.Rewritten, *x)
	}
	for _, p := range c.programs {
		r.Programs = append(r.Programs, *p)
	}
	r.Commands, r.Refusals, r.AuditGaps = c.commands, c.refused, c.gaps
}
