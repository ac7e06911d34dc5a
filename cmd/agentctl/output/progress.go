package output

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"agentsh/controller"
	"agentsh/controller/runtime"
	"agentsh/internal/text"
)

// stepTexts describe the steps of a run.
var stepTexts = map[string]string{
	"load":           "read the harness",
	"expand":         "expand variables",
	"preflight":      "check everything before a sandbox exists",
	"scan_context":   "scan what the agent will read",
	"pre_script":     "run pre_script",
	"providers":      "register the providers",
	"create_sandbox": "create the sandbox",
	"wait_ready":     "wait for the supervisor",
	"bootstrap":      "copy the repository and the agent into the sandbox",
	"scan_sandbox":   "scan the assembled sandbox",
	"agent_host":     "prepare the agent's program on this machine",
	"iterations":     "run the agent",
	"keep_sandbox":   "keep the sandbox for operators",
	"scan_output":    "scan the results",
	"attach":         "take over the sandbox of the killed agentctl",
	"take_work":      "take the agent's work out",
	"deliver":        "deliver the results",
	"post_script":    "run post_script",
	"delete":         "delete the sandbox",
}

// Progress prints the progress of a run: one line for each step, coloured on a
// terminal. Safe for concurrent use.
type Progress struct {
	mu     sync.Mutex
	out    io.Writer
	errs   io.Writer
	quiet  bool
	colour bool
	step   string
	start  time.Time
}

// NewProgress prints progress to out and warnings to errs. quiet leaves out what the agent prints.
func NewProgress(out, errs io.Writer, quiet bool) *Progress {
	return &Progress{out: out, errs: errs, quiet: quiet, colour: Colours(out)}
}

// paint colours a text on a terminal.
func (p *Progress) paint(code, text string) string {
	if !p.colour {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// Update prints an update of a run.
func (p *Progress) Update(u controller.Update) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch u.Kind {
	case controller.UpdateStep:
		p.step, p.start = u.Step, time.Now()
		fmt.Fprintf(p.out, "%s %s\n", p.paint("36", u.Step+":"), stepTexts[u.Step])
	case controller.UpdateWarning:
		fmt.Fprintf(p.errs, "agentctl: %s %s\n", p.paint("33", "warning:"), Printable(u.Text))
	case controller.UpdateOutput:
		if !p.quiet {
			// The bar prevents a CI system from executing a line as a command.
			fmt.Fprintf(p.out, "  | %s\n", u.Text)
		}
	case controller.UpdateRefusal:
		fmt.Fprintf(p.out, "  %s %s\n", p.paint("31", "refused:"), RefusalText(u.Refusal))
	}
}

// End is called at the end of the run.
func (p *Progress) End() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.step = ""
}

// RefusalText is a refusal on one line: the action, the rule and its position.
func RefusalText(r controller.Refusal) string {
	text := strings.Join(strings.Fields(r.Type+" "+r.Hook), " ") + " " + r.What
	if r.Rule.Name != "" {
		text += "  [" + strings.TrimSpace(r.Rule.Name+" "+r.Rule.Position()) + "]"
	}
	if r.Message != "" && r.Rule.Name == "" {
		text += ":"
	}
	if r.Message != "" {
		text += " " + r.Message
	}
	return text
}

// PrintResult prints the work and the refusals of a run.
func PrintResult(w io.Writer, r controller.Result) {
	fmt.Fprintf(w, "\n%s  %s, run %s, %s\n", r.Agent, strings.ReplaceAll(r.Status, "_", " "), r.RunID, Since(r.Started, r.Ended))
	if r.Usage != nil {
		fmt.Fprintf(w, "\nagent: %s%s\n", UsageText(*r.Usage), toolsText(r.Iterations))
	}
	if r.Commands > 0 {
		fmt.Fprintf(w, "\nran %s: %s\n", text.Count(r.Commands, "program"), programsText(r.Programs))
	}
	if r.Refusals > 0 {
		fmt.Fprintf(w, "\nrefused %s:\n", text.Count(r.Refusals, "time"))
		for _, x := range r.Refused {
			count := ""
			if x.Count > 1 {
				count = fmt.Sprintf("  (%d times)", x.Count)
			}
			fmt.Fprintf(w, "  %s%s\n", RefusalText(x), count)
		}
	}
	printPlaceLog(w, r.PlaceLog)
	PrintWork(w, r)
}

// printPlaceLog prints what the place of the sandbox denied.
func printPlaceLog(w io.Writer, l *controller.PlaceLog) {
	if l == nil || l.Denials == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s denied %s:\n", Printable(l.By), text.Count(l.Denials, "time"))
	for _, said := range l.Denied {
		fmt.Fprintf(w, "  %s\n", Printable(said))
	}
	if more := l.Denials - len(l.Denied); more > 0 {
		fmt.Fprintf(w, "  and %s, in %s of the record of the run\n", text.Count(more, "other"), l.File)
	}
}

// UsageText is the usage of a model on one line.
func UsageText(u runtime.Usage) string {
	line := fmt.Sprintf("%s, %s in, %d cached, %d out", text.Count(u.Turns, "turn"), text.Count(u.Input, "token"), u.CacheRead, u.Output)
	if u.CostUSD > 0 {
		line += fmt.Sprintf(", $%.4f", u.CostUSD)
	}
	return line
}

// toolsText lists the used tools, the most used first.
func toolsText(iterations []controller.IterationResult) string {
	calls := map[string]int{}
	for _, it := range iterations {
		for _, t := range it.Tools {
			calls[t.Name] += t.Calls
		}
	}
	var tools []controller.Program
	for name, n := range calls {
		tools = append(tools, controller.Program{Name: name, Count: n})
	}
	if len(tools) == 0 {
		return ""
	}
	slices.SortFunc(tools, func(a, b controller.Program) int { return cmp.Or(b.Count-a.Count, strings.Compare(a.Name, b.Name)) })
	return "; tools: " + programsText(tools)
}

// programsText lists the programs that ran most often.
func programsText(programs []controller.Program) string {
	const few = 12
	var parts []string
	for i, p := range programs {
		if i == few {
			parts = append(parts, "and "+text.Count(len(programs)-few, "other"))
			break
		}
		if p.Count > 1 {
			parts = append(parts, fmt.Sprintf("%s (%d)", p.Name, p.Count))
		} else {
			parts = append(parts, p.Name)
		}
	}
	return strings.Join(parts, ", ")
}

// PrintWork prints the agent's work and its paths.
func PrintWork(w io.Writer, r controller.Result) {
	if len(r.Changed) > 0 {
		heading := "changed"
		if !r.Delivered {
			heading = "changed, but not delivered"
		}
		fmt.Fprintf(w, "\n%s:\n", heading)
		for _, c := range r.Changed {
			fmt.Fprintf(w, "  %-8s %s%s\n", c.Status, text.Visible(string(c.Path)), c.By.Mark())
		}
	}
	if len(r.Commits) > 0 {
		fmt.Fprintf(w, "\ncommits:\n")
		for _, c := range r.Commits {
			fmt.Fprintf(w, "  %.12s %s\n", c.ID, c.Subject)
		}
	}
	if len(r.RefusedCommits) > 0 {
		fmt.Fprintf(w, "\nrefused commits, with all that build on them:\n")
		for _, c := range r.RefusedCommits {
			fmt.Fprintf(w, "  %.12s of %s: %s\n", c.Commit, c.Branch, c.Reason)
		}
		fmt.Fprintf(w, "  all commits: %s\n", r.Bundle)
	}
	if len(r.Skipped) > 0 {
		fmt.Fprintf(w, "\nnot taken:\n")
		for _, name := range r.Skipped {
			fmt.Fprintf(w, "  %s\n", text.Visible(name))
		}
	}
	switch {
	case r.Partial:
		fmt.Fprintln(w, "\nthe results are partial")
	case !r.Delivered:
		fmt.Fprintln(w, "\nnothing was delivered")
	}
	rows := [][2]string{{"branch", r.Branch}, {"repository", r.Repo}}
	if r.Audit != "" {
		rows = append(rows, [2]string{"results", r.Out + "/result.json"}, [2]string{"audit log", r.Audit})
	}
	fmt.Fprintln(w)
	for _, row := range rows {
		if row[1] != "" {
			fmt.Fprintf(w, "%-11s %s\n", row[0], row[1])
		}
	}
}
