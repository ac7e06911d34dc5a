package report

import (
	_ "embed" // for the page template
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"agentsh/controller/batch"
	"agentsh/internal/text"
	auditreport "agentsh/supervisor/audit/report"
)

// Batch is the content of the page of a batch. Texts that an agent could choose are not escaped yet;
// the writers of pages escape them.
type Batch struct {
	View    *batch.View
	Tiles   []Tile
	Rows    []BatchRow
	Omitted int // runs that are not on the page
	Facts   []Fact
}

// BatchRow is one run of a batch.
type BatchRow struct {
	*batch.ItemView
	State    string // how it ended, or its state
	Good     bool
	Going    bool
	Took     time.Duration // of the last attempt; 0: it has not ended
	Labels   string
	Vars     string
	Why      string
	X, Wide  float64 // of the last attempt in the time of the batch, in percent
	HasStart bool
}

// maxBatchRows bounds the runs on a page. Those that failed come first.
const maxBatchRows = 5000

// NewBatch makes the content of the page of a batch.
func NewBatch(v *batch.View) *Batch {
	b := &Batch{View: v}
	from, to := v.Created, v.Ended
	if to.IsZero() {
		to = time.Now().UTC()
	}
	for i := range v.State {
		b.Rows = append(b.Rows, batchRow(&v.State[i], from, to))
	}
	slices.SortStableFunc(b.Rows, func(x, y BatchRow) int { return order(x) - order(y) })
	if len(b.Rows) > maxBatchRows {
		b.Omitted = len(b.Rows) - maxBatchRows
		b.Rows = b.Rows[:maxBatchRows]
	}
	b.tiles(to.Sub(from))
	b.facts()
	return b
}

// order puts runs that failed first, then those that go on.
func order(r BatchRow) int {
	switch {
	case r.Going:
		return 1
	case r.Good:
		return 3
	case r.End == nil && r.ItemView.State == batch.StateWaiting:
		return 2
	}
	return 0
}

func batchRow(one *batch.ItemView, from, to time.Time) BatchRow {
	r := BatchRow{ItemView: one, State: words(one.State), Labels: pairs(one.Labels), Vars: pairs(one.Vars)}
	r.Going = one.State == batch.StateRunning
	if end := one.End; end != nil {
		if one.State == batch.StateEnded {
			r.State, r.Good = words(end.Status), end.ExitCode == 0
		}
		r.Took = end.Ended.Sub(end.Started)
		r.Why = strings.TrimPrefix(end.Step+": "+end.Message, ": ")
		if end.Message == "" {
			r.Why = ""
		}
	}
	if one.State == batch.StateDropped {
		r.Why = "stopped by " + one.By
	}
	if whole := to.Sub(from); whole > 0 && !one.Started.IsZero() {
		last := to
		if one.End != nil && !r.Going {
			last = one.End.Ended
		}
		r.HasStart = true
		r.X = percent(one.Started.Sub(from), whole)
		r.Wide = max(percent(last.Sub(one.Started), whole), 0.2)
	}
	return r
}

func percent(part, whole time.Duration) float64 {
	return min(max(100*float64(part)/float64(whole), 0), 100)
}

func words(s string) string { return text.Short(strings.ReplaceAll(s, "_", " "), 60) }

// pairs are names with their values on one line.
func pairs(m map[string]string) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		out = append(out, name+"="+text.Short(m[name], 100))
	}
	return strings.Join(out, " ")
}

func (b *Batch) tiles(took time.Duration) {
	v, c := b.View, b.View.Counts
	add := func(name, value, more string, bad bool) {
		b.Tiles = append(b.Tiles, Tile{Name: name, Value: value, More: more, Bad: bad})
	}
	add("done", fmt.Sprintf("%d", c.Done()), fmt.Sprintf("of %d runs", c.All), false)
	if n := c.Failed(); n > 0 {
		var kinds []string
		for _, status := range slices.Sorted(maps.Keys(c.Ended)) {
			if status != "done" && status != "skipped" {
				kinds = append(kinds, fmt.Sprintf("%d %s", c.Ended[status], words(status)))
			}
		}
		add("failed", fmt.Sprint(n), strings.Join(kinds, ", "), true)
	}
	if c.Running+c.Waiting > 0 {
		add("left", fmt.Sprint(c.Running+c.Waiting), fmt.Sprintf("%d running, %d waiting", c.Running, c.Waiting), false)
	}
	if c.Dropped > 0 {
		add("dropped", fmt.Sprint(c.Dropped), "stopped by a person", false)
	}
	add("took", span(took.Round(time.Second)), "", false)
	if n := v.Usage.Tokens(); n > 0 || v.Budget.Tokens > 0 {
		more := ""
		if v.Budget.Tokens > 0 {
			more = "of " + count(v.Budget.Tokens)
		}
		add("tokens", count(n), more, v.Budget.Tokens > 0 && n >= v.Budget.Tokens)
	}
	if usd := v.Usage.CostUSD; usd > 0 || v.Budget.USD > 0 {
		more := ""
		if v.Budget.USD > 0 {
			more = fmt.Sprintf("of $%.2f", v.Budget.USD)
		}
		add("cost", fmt.Sprintf("$%.2f", usd), more, v.Budget.USD > 0 && usd >= v.Budget.USD)
	}
}

func (b *Batch) facts() {
	v := b.View
	add := func(name, value string) {
		if value != "" {
			b.Facts = append(b.Facts, Fact{name, text.Short(value, nameShown)})
		}
	}
	add("batch", v.ID)
	add("file", v.File)
	add("about", v.Description)
	add("labels", pairs(v.Labels))
	caps := []string{fmt.Sprintf("%d runs", v.Caps.Runs)}
	for _, of := range []map[string]int{v.Caps.Backends, v.Caps.Models} {
		for _, name := range slices.Sorted(maps.Keys(of)) {
			caps = append(caps, fmt.Sprintf("%d %s", of[name], name))
		}
	}
	add("at once", strings.Join(caps, ", "))
	add("attempts", fmt.Sprint(v.Retries.Attempts))
	if !v.Ends.IsZero() {
		add("deadline", auditreport.Stamp(v.Ends))
	}
	add("results", v.Out)
	add("record", v.Path)
}

//go:embed batch.html
var batchText string

var batchPage = template.Must(template.New("batch").Funcs(template.FuncMap{
	"stamp": auditreport.Stamp, "span": span, "count": count,
	"short": func(s string) string { return text.Short(s, 1000) },
}).Parse(batchText))

// HTML writes the page. Like that of a run it has no script and loads nothing.
func (b *Batch) HTML(w io.Writer) error {
	style := auditreport.Style() + pageStyle
	err := batchPage.Execute(w, struct {
		*Batch
		Style  template.CSS
		Policy string
	}{b, template.CSS(style), auditreport.ContentPolicy(style)})
	if err != nil {
		return fmt.Errorf("page of the batch: %w", err)
	}
	return nil
}

// Markdown writes the page as CommonMark.
func (b *Batch) Markdown(w io.Writer) error {
	m := &markdown{}
	m.line("# Batch %s: %s\n", code(b.View.Name), code(b.View.Status))
	for _, t := range b.Tiles {
		m.line("- %s: %s %s", t.Name, code(t.Value), t.More)
	}
	m.line("\n## Runs\n")
	for _, r := range b.Rows {
		m.line("- %s: %s%s%s", code(r.Name), code(r.State), m.more(r), said(text.Short(r.Why, 1000)))
	}
	if b.Omitted > 0 {
		m.line("\n%d further runs do not fit on this page.", b.Omitted)
	}
	m.line("\n## About\n")
	for _, f := range b.Facts {
		m.line("- %s: %s", f.Name, code(f.Value))
	}
	_, err := io.WriteString(w, m.String())
	return err
}

// more is what a line says of a run besides its state.
func (*markdown) more(r BatchRow) string {
	var parts []string
	if r.Took > 0 {
		parts = append(parts, span(r.Took))
	}
	if r.Attempts > 1 {
		parts = append(parts, fmt.Sprintf("%d attempts", r.Attempts))
	}
	if n := r.Usage.Tokens(); n > 0 {
		parts = append(parts, count(n)+" tokens")
	}
	if r.Usage.CostUSD > 0 {
		parts = append(parts, fmt.Sprintf("$%.4f", r.Usage.CostUSD))
	}
	if r.RunID != "" {
		parts = append(parts, "run "+r.RunID)
	}
	if len(parts) == 0 {
		return ""
	}
	return ", " + strings.Join(parts, ", ")
}
