// Package report makes a page about one run: its steps, the agent's events,
// changes and usage, and the policy's decisions.
package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"agentsh/controller"
	"agentsh/controller/agenthost"
	"agentsh/controller/attach"
	"agentsh/controller/record"
	"agentsh/controller/runtime"
	"agentsh/controller/scan"
	"agentsh/internal/text"
	auditreport "agentsh/supervisor/audit/report"
)

// Report is the content of a page. Texts that an agent could choose are not
// escaped yet; the writers of pages escape them.
type Report struct {
	Run      record.Run
	Result   *controller.Result // nil: the run has none
	Notes    []string           // what is missing, and why
	Facts    []Fact
	Tiles    []Tile
	Problem  *Problem // why the run did not succeed
	Steps    []Step
	Findings []scan.Finding
	Log      *auditreport.Report
	Network  []*Connection
	Agent    []*AgentEvent
	Usage    []*Usage
	Files    []File

	Operator []attach.Action
	Omitted  Omitted
}

// Omitted counts the items that are not on the page.
type Omitted struct {
	Agent, Files, Network int
}

// Bounds of a page. Omitted items are counted.
const (
	maxAgentEvents = 3000
	maxTargets     = 500
	maxModels      = 50
	textShown      = 8000 // characters of a text of the agent
	resultShown    = 4000 // characters of a tool's result
	nameShown      = 300  // characters
)

// Fact is one line of the facts about a run.
type Fact struct {
	Name, Value string
}

// Tile is a number at the top of the page.
type Tile struct {
	Name, Value, More string
	Bad               bool
}

// Problem is the reason why a run did not succeed.
type Problem struct {
	Step, Message, Hint string
	List                []string
}

// Step is one step of the run.
type Step struct {
	Name    string
	Began   time.Time
	Took    time.Duration
	Ended   bool
	Error   string
	X, Wide float64 // of the run's time, in percent
}

// AgentEvent is one event of the agent. Successive lines are one event.
type AgentEvent struct {
	At        time.Time
	Iteration int
	New       bool // first of its iteration
	Kind      string
	Tool      string
	Text      string
	Answer    string // result of a tool
	Answered  bool
	Failed    bool

	call  string // id of a tool call without a result yet
	lines int
}

// Usage is the usage of one model.
type Usage struct {
	Model string
	runtime.Usage
}

// Connection is a destination with the policy's decisions.
type Connection struct {
	Decision, Target, Rule, Message string
	Times                           int
	Sent, Received                  int64

	open map[uint64]bool
}

// File is a file that the agent changed.
type File struct {
	controller.FileDiff
	Open  bool // its lines are shown without a click
	Lines []Line
}

// Line is a line of a difference.
type Line struct {
	Class string // add, remove, hunk; empty: the same on both sides
	Text  string
}

// Succeeded reports whether the run succeeded.
func (r *Report) Succeeded() bool { return r.Run.Status == controller.StatusDone }

// Status is the status of the run, with spaces.
func (r *Report) Status() string { return strings.ReplaceAll(r.Run.Status, "_", " ") }

// Title is the title of the page.
func (r *Report) Title() string {
	if r.Run.Agent != "" {
		return text.Short(r.Run.Agent, nameShown)
	}
	return text.Short(r.Run.Harness, nameShown)
}

// end is the time when the run ended, or the last known time of a run without
// an end.
func (r *Report) end() time.Time {
	end := r.Run.Started
	if r.Run.Ended != nil {
		return *r.Run.Ended
	}
	for _, s := range r.Run.Steps {
		end = later(end, s.Started)
		if s.Ended != nil {
			end = later(end, *s.Ended)
		}
	}
	return end
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// setSteps sets the steps with their positions on the time axis.
func (r *Report) setSteps() {
	all := max(r.end().Sub(r.Run.Started), time.Millisecond)
	part := func(t time.Time) float64 {
		return 100 * min(max(float64(t.Sub(r.Run.Started))/float64(all), 0), 1)
	}
	for _, s := range r.Run.Steps {
		step := Step{Name: text.Short(s.Name, 80), Began: s.Started, Error: text.Short(s.Error, textShown), X: part(s.Started)}
		end := r.end()
		if s.Ended != nil {
			end, step.Ended, step.Took = *s.Ended, true, s.Ended.Sub(s.Started)
		}
		step.Wide = min(max(part(end)-step.X, 0.4), 100)
		step.X = min(step.X, 100-step.Wide)
		r.Steps = append(r.Steps, step)
	}
}

// setProblem sets the reason why the run did not succeed.
func (r *Report) setProblem() {
	if r.Result != nil && r.Result.Error != nil {
		e := r.Result.Error
		r.Problem = &Problem{Step: text.Short(e.Step, 80), Message: text.Short(e.Message, textShown), Hint: text.Short(e.Hint, textShown)}
		for _, p := range e.Problems {
			r.Problem.List = append(r.Problem.List, text.Short(p.At.String()+": "+p.Message, textShown))
		}
		return
	}
	if r.Run.Status == record.StatusAbandoned {
		r.Problem = &Problem{
			Message: "agentctl was killed while the run went on",
			Hint:    "what it left is removed by the next run, or by 'agentctl gc'",
		}
		if n := len(r.Run.Steps); n > 0 {
			r.Problem.Step = text.Short(r.Run.Steps[n-1].Name, 80)
		}
	}
}

// agentHost says how an agent's program ran on the host; empty: it ran in the sandbox.
func agentHost(a *agenthost.About) string {
	switch {
	case a == nil:
		return ""
	case !a.Session:
		return a.Program + ", without a session of its own: " + a.Why
	}
	said := a.Program + ", in a session that reached " + strings.Join(a.Hosts, ", ")
	if a.Refusals > 0 {
		said += "; refused " + text.Count(a.Refusals, "time")
	}
	return said
}

// placeLog says what is in the log of the place of a sandbox.
func placeLog(l *controller.PlaceLog) string {
	if l.Missing != "" {
		return "missing: " + l.Missing
	}
	said := text.Count(l.Lines, "line") + " in " + l.File
	if l.Denials > 0 {
		said += "; denied " + text.Count(l.Denials, "time") + ": " + strings.Join(l.Denied, "; ")
	}
	return said
}

// setFacts sets the facts about the run.
func (r *Report) setFacts() {
	add := func(name, value string) {
		if value != "" {
			r.Facts = append(r.Facts, Fact{name, text.Short(value, textShown)})
		}
	}
	add("run", r.Run.RunID)
	add("harness", r.Run.Harness)
	if x := r.Result; x != nil {
		add("about", x.About)
		add("role", x.Role)
		add("runtime", x.Runtime)
		add("policy", x.Policy)
		add("engine", x.Engine)
		add("advisory", x.Advisory)
		add("without", strings.Join(x.Degraded, ", "))
		for _, f := range holders(x.Guarantees) {
			add(f.Name, f.Value)
		}
		add("agent on the host", agentHost(x.AgentHost))
		if l := x.PlaceLog; l != nil {
			add("log of "+l.By, placeLog(l))
		}
	}
	add("backend", r.Run.Backend)
	add("repository", r.Run.Repo)
	if x := r.Result; x != nil {
		add("base commit", x.Base)
		add("branch", x.Branch)
		for _, b := range x.Branches {
			add("further branch", b)
		}
		for _, c := range x.Commits {
			add("commit", fmt.Sprintf("%.12s %s", c.ID, c.Subject))
		}
		for _, c := range x.RefusedCommits {
			add("refused commit", fmt.Sprintf("%.12s of %s: %s", c.Commit, c.Branch, c.Reason))
		}
		add("bundle of all commits", x.Bundle)
		for _, name := range x.Skipped {
			add("not taken", name)
		}
	}
	add("results", r.results())
	add("record", r.Run.Path)
}

// results says where the results are, and if they are complete.
func (r *Report) results() string {
	switch x := r.Result; {
	case x == nil:
		return r.Run.Out
	case !x.Delivered && x.Audit == "": // earlier releases wrote only Audit
		return "nothing was delivered"
	case x.Partial:
		return r.Run.Out + " (partial)"
	}
	return r.Run.Out
}

// setTiles sets the numbers at the top.
func (r *Report) setTiles() {
	tile := func(name, value, more string, bad bool) { r.Tiles = append(r.Tiles, Tile{name, value, more, bad}) }
	tile("time", span(r.end().Sub(r.Run.Started)), "", false)
	if x := r.Result; x != nil {
		if n := len(x.Iterations); n > 0 {
			tile("iterations", fmt.Sprint(n), "", false)
		}
		tile("programs", fmt.Sprint(x.Commands), "", false)
		kinds := ""
		if len(x.Refused) > 0 {
			kinds = text.Count(len(x.Refused), "kind")
		}
		tile("refused", fmt.Sprint(x.Refusals), kinds, x.Refusals > 0)
		if x.AuditGaps > 0 {
			tile("events missing", fmt.Sprint(x.AuditGaps), "", true)
		}
	}
	critical := 0
	for _, f := range r.Findings {
		if f.Severity == scan.Critical {
			critical++
		}
	}
	more := ""
	if critical > 0 {
		more = fmt.Sprintf("%d critical", critical)
	}
	tile("findings", fmt.Sprint(len(r.Findings)), more, critical > 0)
	added, removed := 0, 0
	for _, f := range r.Files {
		added, removed = added+f.Added, removed+f.Removed
	}
	tile("files changed", fmt.Sprint(len(r.Files)+r.Omitted.Files), fmt.Sprintf("+%d −%d", added, removed), false)
	if u := r.TotalUsage(); u != nil {
		tile("tokens", count(u.Input+u.Output+u.CacheRead+u.CacheWrite), count(u.Output)+" out", false)
		if u.CostUSD > 0 {
			tile("cost", fmt.Sprintf("$%.4f", u.CostUSD), "", false)
		}
	}
	if len(r.Network) > 0 {
		var sent, received int64
		for _, c := range r.Network {
			sent, received = sent+c.Sent, received+c.Received
		}
		tile("network", size(sent+received), text.Count(len(r.Network), "destination"), false)
	}
}

// TotalUsage is the usage of all models; nil if none is known.
func (r *Report) TotalUsage() *runtime.Usage {
	if len(r.Usage) == 0 {
		return nil
	}
	var all runtime.Usage
	for _, u := range r.Usage {
		add(&all, u.Usage)
	}
	return &all
}

// add adds v to u, whatever its model.
func add(u *runtime.Usage, v runtime.Usage) {
	model := u.Model
	u.Add(v)
	u.Model = model
}

// said adds an event of the agent.
func (r *Report) said(e record.AgentEvent) {
	if e.Kind == runtime.EventUsage {
		r.used(e.Usage)
		return
	}
	if e.Kind == runtime.EventToolResult && r.answer(e) {
		return
	}
	last := len(r.Agent) - 1
	if e.Kind == runtime.EventLine && last >= 0 {
		const most = 200 // lines shown as one
		if s := r.Agent[last]; s.Kind == e.Kind && s.Tool == e.Stream && s.Iteration == e.Iteration && s.lines < most {
			s.Text += "\n" + text.Line(clip(e.Text, textShown))
			s.lines++
			return
		}
	}
	if len(r.Agent) == maxAgentEvents {
		r.Omitted.Agent++
		return
	}
	s := &AgentEvent{
		At: e.Time, Iteration: e.Iteration, New: last < 0 || r.Agent[last].Iteration != e.Iteration, Kind: text.Short(e.Kind, 40),
		Tool: text.Short(e.Tool, 80),
		Text: lines(e.Text, textShown), Failed: e.Failed || e.Kind == runtime.EventError, lines: 1,
	}
	switch e.Kind {
	case runtime.EventLine:
		s.Tool = text.Short(e.Stream, 20)
	case runtime.EventToolCall:
		s.call = e.Call
	}
	r.Agent = append(r.Agent, s)
}

// answer adds a tool's result to its call.
func (r *Report) answer(e record.AgentEvent) bool {
	if e.Call == "" {
		return false
	}
	for _, s := range slices.Backward(r.Agent) {
		if s.Kind == runtime.EventToolCall && !s.Answered && s.call == e.Call {
			s.Answered, s.Failed, s.Answer = true, e.Failed, lines(e.Text, resultShown)
			return true
		}
	}
	return false
}

// used adds the usage of a model.
func (r *Report) used(u *runtime.Usage) {
	if u == nil {
		return
	}
	model := text.Short(u.Model, 80)
	i := slices.IndexFunc(r.Usage, func(x *Usage) bool { return x.Model == model })
	if i < 0 && len(r.Usage) == maxModels {
		i = maxModels - 1
		r.Usage[i].Model = "(others)"
	}
	if i < 0 {
		i = len(r.Usage)
		r.Usage = append(r.Usage, &Usage{Model: model})
	}
	add(&r.Usage[i].Usage, *u)
}

// setFiles sets the lines of the changed files.
func (r *Report) setFiles(c controller.Changes) {
	r.Omitted.Files = c.Omitted
	const openLines = 400 // of all files
	shown := 0
	for _, f := range c.Files {
		one := File{FileDiff: f}
		one.Path, one.Why = text.Visible(f.Path), text.Short(f.Why, nameShown)
		for l := range strings.Lines(f.Diff) {
			one.Lines = append(one.Lines, Line{class(l), text.Line(strings.TrimSuffix(l, "\n"))})
		}
		shown += len(one.Lines)
		one.Open = shown <= openLines
		r.Files = append(r.Files, one)
	}
}

// finish sorts the lists of the page.
func (r *Report) finish() {
	slices.SortStableFunc(r.Findings, func(a, b scan.Finding) int { return cmp.Compare(b.Severity, a.Severity) })
	slices.SortStableFunc(r.Network, func(a, b *Connection) int { return strings.Compare(b.Decision, a.Decision) })
	if r.Log != nil {
		r.Log.Finish()
	}
	r.setSteps()
	r.setProblem()
	r.setFacts()
	r.setTiles()
}
