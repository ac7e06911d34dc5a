// Package report makes a page from the events of an audit log: the commands, their ends,
// and the refusals with their rules. report.go collects events; html.go and markdown.go
// write the page.
package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"agentsh/internal/text"
	"agentsh/internal/wire"
)

// Report is the content of a page. Commands chose its texts, so the writers of pages
// escape them.
type Report struct {
	Source   string // the log
	Verified bool   // the log is whole
	Check    string // one sentence on whether the log is whole
	Sessions []*Session
	Omitted  int // events of sessions that are not shown
}

// Bounds of a page. Further entries are counted only.
const (
	maxSessions = 100
	maxCommands = 500  // of a session
	maxPrograms = 2000 // of a session
	maxRows     = 500  // of a table
	maxExamples = 5    // of a rule that refused
	argvShown   = 400  // characters
	textShown   = 1000 // characters
)

// Session is one session of the log.
type Session struct {
	ID       string
	About    string // the message of its first event
	Begin    time.Time
	End      time.Time
	Ended    bool   // its end is in the log
	Why      string // it ended, unless its owner closed it
	Commands []*Command
	Refusals []*Refusal // by rule, most frequent first
	Files    []*Row
	Signals  []*Row
	Network  []*Row
	Faults   []*Row
	Others   []*Row
	Omitted  int // events that are in no table

	index index
}

// index finds the entries of a session that an event belongs to.
type index struct {
	programs int                 // how many there are
	command  map[string]*Command // by request id
	refusal  map[string]*Refusal // by rule and message
	row      map[string]*Row     // by all that the row shows
}

// Command is one request and the programs that it started.
type Command struct {
	ID       string
	Argv     string
	Path     string
	By       string // the requester, when it was not the run itself
	Decision string
	Rule     string
	Message  string
	Begin    time.Time
	End      time.Time
	Exit     string // empty: its end is not in the log
	Bad      bool   // it did not exit with 0
	Programs []Program
	Refused  int
}

// Duration is how long the command ran; 0 while its end is not known.
func (c *Command) Duration() time.Duration {
	if c.Exit == "" {
		return 0
	}
	return c.End.Sub(c.Begin)
}

// Program is one nested program.
type Program struct {
	At       time.Time
	PID      int
	Argv     string
	Path     string
	Decision string
	Rule     string
	Message  string
}

// Refusal is a rule that refused something.
type Refusal struct {
	Rule     string
	Message  string
	Hint     string
	Count    int
	Examples []string
}

// Row is one or more equal events.
type Row struct {
	At       time.Time // first
	Command  string
	Decision string
	What     string
	Rule     string
	Message  string
	Count    int
}

// Add adds the next event of the log.
func (r *Report) Add(e wire.Event) {
	e.Decision = text.Short(e.Decision, 20)
	s := r.session(e)
	if s == nil {
		r.Omitted++
		return
	}
	s.End = e.Time
	switch e.Type {
	case wire.EventSession:
		s.bound(e)
	case wire.EventCommand:
		s.addCommand(e)
	case wire.EventExec:
		s.addProgram(e)
	case wire.EventFile:
		s.addRow(&s.Files, e)
	case wire.EventSignal:
		s.addRow(&s.Signals, e)
	case wire.EventNet:
		s.addRow(&s.Network, e)
	case wire.EventFault:
		s.addRow(&s.Faults, e)
	default:
		s.addRow(&s.Others, e)
	}
	if e.Decision == "deny" {
		s.addRefusal(e)
	}
}

// Killed says that the supervisors of sessions were killed or crashed.
func (r *Report) Killed(sessions []string) {
	for _, s := range r.Sessions {
		if slices.Contains(sessions, s.ID) {
			s.Why = wire.CauseSupervisor.Sentence("")
		}
	}
}

// Finish sorts the report. It is called after the last event.
func (r *Report) Finish() {
	for _, s := range r.Sessions {
		slices.SortStableFunc(s.Refusals, func(a, b *Refusal) int { return cmp.Compare(b.Count, a.Count) })
	}
}

func (r *Report) session(e wire.Event) *Session {
	for _, s := range slices.Backward(r.Sessions) {
		if s.ID == text.Short(e.Session, 80) {
			return s
		}
	}
	if len(r.Sessions) == maxSessions {
		return nil
	}
	s := &Session{
		ID: text.Short(e.Session, 80), Begin: e.Time, End: e.Time,
		index: index{command: map[string]*Command{}, refusal: map[string]*Refusal{}, row: map[string]*Row{}},
	}
	r.Sessions = append(r.Sessions, s)
	return s
}

func (s *Session) bound(e wire.Event) {
	switch e.Phase {
	case "end":
		s.Ended = true
		if e.Cause != wire.CauseClosed {
			s.Why = text.Short(e.Message, textShown)
		}
		return
	case "begin":
	default:
		s.addRow(&s.Others, e)
		return
	}
	s.About = text.Short(e.Message, textShown)
}

func (s *Session) addCommand(e wire.Event) {
	if e.Phase == "begin" {
		if len(s.Commands) == maxCommands {
			s.Omitted++
			return
		}
		c := &Command{
			ID: text.Short(e.Command, 80), Argv: text.Args(e.Argv, argvShown), Path: text.Short(e.Path, textShown),
			By: text.Short(e.By, 80), Decision: e.Decision, Rule: rule(e), Message: text.Short(e.Message, textShown),
			Begin: e.Time, End: e.Time,
		}
		s.Commands = append(s.Commands, c)
		s.index.command[e.Command] = c // if an id is used again, it means the later command
		return
	}
	if c := s.index.command[e.Command]; c != nil && e.Exit != nil {
		c.End, c.Exit = e.Time, exitText(*e.Exit)
		c.Bad = e.Exit.Kind != wire.ExitExited || e.Exit.Code != 0
	}
}

func (s *Session) addProgram(e wire.Event) {
	c := s.index.command[e.Command]
	if c == nil || s.index.programs == maxPrograms {
		s.Omitted++
		return
	}
	s.index.programs++
	p := Program{
		At: e.Time, Argv: text.Args(e.Argv, argvShown), Path: text.Short(e.Path, textShown), Decision: e.Decision,
		Rule: rule(e), Message: text.Short(e.Message, textShown),
	}
	if e.Process != nil {
		p.PID = e.Process.PID
	}
	c.Programs = append(c.Programs, p)
}

// addRow counts e in the row of a table for the same thing.
func (s *Session) addRow(table *[]*Row, e wire.Event) {
	key := strings.Join([]string{e.Type, e.Command, e.Decision, e.Op, e.Path, e.Target, rule(e), e.Message}, "\x00")
	row := s.index.row[key]
	if row == nil {
		if len(*table) == maxRows {
			s.Omitted++
			return
		}
		row = &Row{
			At: e.Time, Command: text.Short(e.Command, 80), Decision: e.Decision, What: subject(e), Rule: rule(e),
			Message: text.Short(e.Message, textShown),
		}
		s.index.row[key] = row
		*table = append(*table, row)
	}
	row.Count += times(e)
}

func (s *Session) addRefusal(e wire.Event) {
	if c := s.index.command[e.Command]; c != nil {
		c.Refused += times(e)
	}
	key := rule(e) + "\x00" + e.Message
	f := s.index.refusal[key]
	if f == nil {
		if len(s.Refusals) == maxRows {
			s.Omitted++
			return
		}
		f = &Refusal{Rule: rule(e), Message: text.Short(e.Message, textShown), Hint: text.Short(e.Hint, textShown)}
		s.index.refusal[key] = f
		s.Refusals = append(s.Refusals, f)
	}
	f.Count += times(e)
	if example := subject(e); len(f.Examples) < maxExamples && !slices.Contains(f.Examples, example) {
		f.Examples = append(f.Examples, example)
	}
}

// times is the number of occurrences that an event includes.
func times(e wire.Event) int { return max(e.Count, 1) }

// subject is a short text of the subject of an event.
func subject(e wire.Event) string {
	if len(e.Argv) > 0 {
		return text.Args(e.Argv, argvShown)
	}
	return text.Short(strings.Join(strings.Fields(e.Op+" "+e.Path+" "+e.Target), " "), textShown)
}

func rule(e wire.Event) string {
	if e.Rule == nil {
		return ""
	}
	return text.Short(e.Rule.String(), 400)
}

func exitText(e wire.Exit) string {
	switch e.Kind {
	case wire.ExitExited:
		return fmt.Sprintf("exit %d", e.Code)
	case wire.ExitSignaled, wire.ExitOOM:
		return fmt.Sprintf("%s, signal %d", text.Short(e.Kind, 20), e.Signal)
	}
	return text.Short(strings.ReplaceAll(e.Kind, "_", " ")+": "+e.Message, textShown)
}
