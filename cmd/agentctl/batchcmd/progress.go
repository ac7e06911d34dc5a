package batchcmd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/cmd/agentctl/output"
	"agentsh/controller/batch"
	"agentsh/internal/text"
)

// batchProgress shows a batch that goes on: a table on a terminal, a line for each event elsewhere,
// or JSON. Safe for concurrent use.
type batchProgress struct {
	mu     sync.Mutex
	out    io.Writer
	errs   io.Writer
	json   bool
	table  *os.File // the terminal; nil: there is none
	colour bool
	drawn  int // lines of the table on the terminal
	of     *batch.Batch
	told   map[string]bool // warnings
	done   chan struct{}   // closed at the end
	ended  sync.WaitGroup
}

func newBatchProgress(out, errs io.Writer, asJSON bool) *batchProgress {
	p := &batchProgress{out: out, errs: errs, json: asJSON, colour: output.Colours(out), told: map[string]bool{}, done: make(chan struct{})}
	if f, ok := out.(*os.File); ok && !asJSON && os.Getenv("TERM") != "dumb" {
		if _, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
			p.table = f
		}
	}
	return p
}

// redraw is the time between two looks at the batch.
const redraw = 250 * time.Millisecond

// begin is called when the batch is open.
func (p *batchProgress) begin(b *batch.Batch) {
	p.mu.Lock()
	p.of = b
	p.mu.Unlock()
	if !p.json {
		v := b.View()
		p.line(fmt.Sprintf("batch %s (%s): %s", text.Visible(v.Name), v.ID, countsText(v)))
	}
	if p.table == nil {
		return
	}
	p.ended.Go(func() { // ends with end
		t := time.NewTicker(redraw)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				p.mu.Lock()
				p.draw()
				p.mu.Unlock()
			case <-p.done:
				return
			}
		}
	})
}

// end is called when the batch has ended.
func (p *batchProgress) end(v *batch.View) {
	close(p.done)
	p.ended.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
	if p.json {
		p.encode(struct {
			Kind  string      `json:"event"`
			Time  time.Time   `json:"time"`
			Batch *batch.View `json:"batch"`
		}{"batch", time.Now().UTC(), v})
		return
	}
	fmt.Fprintf(p.out, "\n%s  %s, batch %s, %s\n%s\n", text.Visible(v.Name), v.Status, v.ID, output.Since(v.Began, v.Ended), countsText(v))
	fmt.Fprintf(p.out, "results     %s\n", text.Visible(v.Out))
}

// encode prints a JSON object on one line.
func (p *batchProgress) encode(v any) {
	enc := json.NewEncoder(output.PrintableJSON{W: p.out})
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // a reader of the output that has gone does not end the batch
}

// event shows one event.
func (p *batchProgress) event(e batch.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.json {
		p.encode(e)
		return
	}
	if e.Kind == batch.EventWarning {
		p.warn(e)
		return
	}
	if line := p.eventText(e); line != "" {
		p.printed(p.out, line)
	}
}

// line prints a line above the table.
func (p *batchProgress) line(s string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.printed(p.out, s)
}

// printed prints a line above the table. It is called with mu held.
func (p *batchProgress) printed(w io.Writer, s string) {
	p.erase()
	fmt.Fprintln(w, s)
	p.draw()
}

// maxWarnings bounds the warnings that are told apart.
const maxWarnings = 1000

// warn prints a warning. Of a text that many runs have, the first is printed.
func (p *batchProgress) warn(e batch.Event) {
	if p.told[e.Text] || len(p.told) >= maxWarnings {
		return
	}
	p.told[e.Text] = true
	of := ""
	if e.Run != nil {
		of = e.Run.Name + ": "
	}
	p.printed(p.errs, fmt.Sprintf("agentctl: %s %s%s", p.paint("33", "warning:"), of, output.Printable(e.Text)))
}

func (p *batchProgress) paint(code, s string) string {
	if !p.colour {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// eventText is the line of an event; empty: none.
func (p *batchProgress) eventText(e batch.Event) string {
	switch e.Kind {
	case batch.EventStop:
		return p.paint("33", "stopping: ") + output.Printable(e.Text)
	case batch.EventDrop:
		return fmt.Sprintf("%s %s: stopped by %s", p.paint("33", "dropped"), e.Run.Name, text.Visible(e.Run.By))
	case batch.EventStart:
		if p.table != nil {
			return "" // it is in the table
		}
		line := fmt.Sprintf("%s %s, run %s", p.paint("36", "started"), e.Run.Name, e.Run.RunID)
		if e.Run.Attempts > 1 {
			line += fmt.Sprintf(", attempt %d", e.Run.Attempts)
		}
		return line
	case batch.EventEnd:
		return p.endText(e.Run)
	}
	return ""
}

// endText is the line of the end of a run.
func (p *batchProgress) endText(one *batch.ItemView) string {
	end := one.End
	took := output.Since(end.Started, end.Ended)
	switch {
	case one.State == batch.StateRetrying:
		return fmt.Sprintf("%s %s in %s, after attempt %d: %s", p.paint("33", "again"), one.Name,
			max(time.Until(one.NotBefore), 0).Round(time.Second), one.Attempts, whyText(one))
	case one.State == batch.StateWaiting && end.StoppedBy == batch.StatusAbandoned:
		return fmt.Sprintf("%s %s: what its attempt %d had done is gone with agentctl: %s", p.paint("33", "again"), one.Name,
			one.Attempts, whyText(one))
	case end.ExitCode == 0:
		line := fmt.Sprintf("%s %s in %s", p.paint("32", stateText(one)), one.Name, took)
		if end.Branch != "" {
			line += ", " + text.Count(end.Commits, "commit")
		}
		if end.Changed > 0 {
			line += ", " + text.Count(end.Changed, "file")
		}
		if u := one.Usage; u.CostUSD > 0 {
			line += ", " + costText(u.CostUSD)
		}
		return line
	}
	return fmt.Sprintf("%s %s in %s: %s", p.paint("31", strings.ReplaceAll(end.Status, "_", " ")), one.Name, took, whyText(one))
}

// erase removes the table from the terminal. It is called with mu held.
func (p *batchProgress) erase() {
	if p.drawn > 0 {
		fmt.Fprintf(p.out, "\x1b[%dA\x1b[J", p.drawn)
		p.drawn = 0
	}
}

// draw draws the table on a terminal. It is called with mu held.
func (p *batchProgress) draw() {
	if p.table == nil || p.of == nil {
		return
	}
	select {
	case <-p.done:
		return
	default:
	}
	size, err := unix.IoctlGetWinsize(int(p.table.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Col < 20 || size.Row < 4 {
		return
	}
	lines := tableLines(p.of.View(), int(size.Row)-2, int(size.Col)-1)
	var all bytes.Buffer
	if p.drawn > 0 {
		fmt.Fprintf(&all, "\x1b[%dA\x1b[J", p.drawn)
	}
	for _, l := range lines {
		all.WriteString(l + "\n")
	}
	p.drawn = len(lines)
	_, _ = p.out.Write(all.Bytes()) // a terminal that has gone does not end the batch
}

// tableLines are the counts of a batch and the runs that go on, in at most a number of lines and
// columns.
func tableLines(v *batch.View, rows, columns int) []string {
	var table bytes.Buffer
	list := [][]string{{"  RUN", "STEP", "FOR", "TOKENS", "COST"}}
	running := 0
	for i := range v.State {
		one := &v.State[i]
		if one.State != batch.StateRunning {
			continue
		}
		if running++; running > rows-3 {
			continue
		}
		list = append(list, []string{
			"  " + one.Name, orNone(one.Step), output.Since(one.Started, time.Now()).Round(time.Second).String(), tokensText(one.Usage),
			costText(one.Usage.CostUSD),
		})
	}
	if running > 0 {
		_ = output.PrintRows(&table, list) // a buffer takes everything
	}
	lines := []string{countsText(v) + ", " + output.Since(v.Began, time.Now()).Round(time.Second).String()}
	lines = append(lines, strings.Split(strings.TrimSuffix(table.String(), "\n"), "\n")...)
	if more := running - (rows - 3); more > 0 {
		lines = append(lines, fmt.Sprintf("  and %d more", more))
	}
	out := lines[:0]
	for _, l := range lines {
		if l == "" {
			continue
		}
		if r := []rune(l); len(r) > columns {
			l = string(r[:columns])
		}
		out = append(out, l)
	}
	return out
}
