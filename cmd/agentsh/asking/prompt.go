package asking

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"os/user"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"agentsh/internal/text"
	"agentsh/internal/wire"
)

// quiet is the time for which a question is shown before it can be answered. What
// is typed meanwhile was meant for something else, and begins the time again.
const quiet = time.Second

// stalled is a time that a write takes only on a terminal that was stopped. A person types
// nothing so soon after it.
const stalled = 100 * time.Millisecond

// Prompt shows one question after the other on a terminal. An answer is a line:
// y, a or n.
type Prompt struct {
	screen output
	keys   *keys
	answer func(wire.ApprovalAnswer) error
	by     string

	absent func() string    // why nobody can be asked now; empty: somebody can
	before func()           // discards what was typed
	after  func(whole bool) // a question left the screen
	echo   func() bool      // the terminal shows what is typed
	size   func() (cols, rows int)
	watch  func(func()) (stop func()) // calls a function at each SIGINT

	mu        sync.Mutex
	shown     string // id of the question on the terminal; empty: none
	open      bool   // it can be answered
	turn      int    // changes when what was typed before is no answer
	disturbed bool   // something was typed since it was shown
	timer     *time.Timer
	line      line
	waiting   []wire.Pending
	interrupt func() // ends the watch for Ctrl-C
}

// output is where questions are shown.
type output interface {
	io.Writer
	hold()
	release() (whole bool)
}

func newPrompt(screen output, in *keys, answer func(wire.ApprovalAnswer) error) *Prompt {
	return &Prompt{
		screen: screen, keys: in, answer: answer, by: Answerer() + " on a terminal",
		absent: func() string { return "" }, before: func() {}, after: func(bool) {}, echo: func() bool { return true },
		watch: func(func()) func() { return func() {} }, size: func() (int, int) { return 80, 24 },
	}
}

// alone is a screen that no command shares.
type alone struct{ io.Writer }

func (alone) hold()         {}
func (alone) release() bool { return false }

// NewPrompt asks on a terminal that no command has. It reads in until its end, or that
// of this process.
func NewPrompt(in io.Reader, out io.Writer, answer func(wire.ApprovalAnswer) error) *Prompt {
	p := newPrompt(alone{out}, newKeys(in, func(time.Time) error { return nil }), answer)
	if f, ok := in.(*os.File); ok {
		t := &Terminal{tty: f}
		p.before, p.size = t.flush, t.size
	}
	return p
}

// Answerer names the person at this program, for the audit log.
func Answerer() string {
	name := fmt.Sprintf("user %d", os.Getuid())
	if u, err := user.Current(); err == nil && u.Username != "" {
		name = u.Username
	}
	return name
}

// Update replaces the waiting questions and shows the next one.
func (p *Prompt) Update(list []wire.Pending) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = list
	if p.shown != "" && !slices.ContainsFunc(list, func(q wire.Pending) bool { return q.ID == p.shown }) {
		fmt.Fprintf(p.screen, "\nagentsh: question %s waits no more\n", p.shown)
		p.hide()
	}
	p.show()
	return nil
}

// show puts the oldest question on the terminal if none is. It is called with mu
// held.
func (p *Prompt) show() {
	for p.shown == "" && len(p.waiting) > 0 {
		q := p.waiting[0]
		if why := p.absent(); why != "" {
			p.waiting = p.waiting[1:]
			_ = p.answer(wire.ApprovalAnswer{ID: q.ID, Reason: why}) // it may wait no more
			continue
		}
		p.screen.hold()
		if !time.Now().Before(q.Ends) { // it waited for the question of another process
			p.waiting = p.waiting[1:]
			p.after(p.screen.release())
			continue
		}
		p.before()
		p.shown, p.open, p.disturbed, p.line = q.ID, false, false, line{}
		fmt.Fprint(p.screen, questionText(q, time.Now(), p.size))
		p.keys.listen(func(b []byte) { p.early(q.ID, b) }, p.gone)
		p.interrupt = p.watch(func() { p.deny(q.ID) })
		p.timer = time.AfterFunc(quiet, func() { p.opens(q.ID) })
	}
}

// onInterrupt calls f at each SIGINT of this process until the function that it
// returns is called.
func onInterrupt(f func()) (stop func()) {
	got, done := make(chan os.Signal, 1), make(chan struct{})
	if !signal.Ignored(syscall.SIGINT) {
		signal.Notify(got, syscall.SIGINT)
	}
	go func() {
		for {
			select {
			case <-got:
				f()
			case <-done:
				return
			}
		}
	}()
	return func() {
		signal.Stop(got)
		close(done)
	}
}

// opens lets a question be answered, once nothing was typed for a while.
func (p *Prompt) opens(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.shown != id || p.open:
	case p.disturbed:
		p.disturbed = false
		p.timer.Reset(quiet)
	default:
		p.open = true
		p.answerable()
		began := time.Now()
		fmt.Fprint(p.screen, "allow it? y: once, a: always in this session, n: no: ")
		if time.Since(began) > stalled {
			p.answerable() // what was typed meanwhile was typed before this could be read
		}
	}
}

// answerable takes what is typed from now on for answers. It is called with mu held.
func (p *Prompt) answerable() {
	p.before()
	p.line = line{}
	p.turn++
	turn := p.turn
	p.keys.listen(func(b []byte) { p.typed(turn, b) }, p.gone)
}

// hide ends the question that is shown. It is called with mu held.
func (p *Prompt) hide() {
	p.shown, p.open = "", false
	p.turn++
	p.timer.Stop()
	p.interrupt()
	p.keys.ignore()
	p.after(p.screen.release())
}

// end shows nothing more.
func (p *Prompt) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = nil
	if p.shown != "" {
		fmt.Fprintln(p.screen)
		p.hide()
	}
}

// questionText is the text of a question. It shows everything that an answer covers. A
// value of several lines has a mark before each further one, so that it cannot look like the
// other lines of a question.
func questionText(q wire.Pending, now time.Time, size func() (cols, rows int)) string {
	var b strings.Builder
	cols, rows := size()
	if cols == 0 || rows == 0 {
		cols, rows = 80, 24
	}
	line := func(name, value string) {
		for i, part := range lines(value, max(cols-len("             | "), 20)) {
			if i == 0 {
				fmt.Fprintf(&b, "  %-10s %s\n", name, part)
			} else {
				fmt.Fprintf(&b, "             | %s\n", part)
			}
		}
	}
	fmt.Fprintf(&b, "\nagentsh: question %s, denied in %s\n", q.ID, q.Ends.Sub(now).Round(time.Second))
	if q.Kind == wire.AskExec {
		line("run", text.Visible(string(q.Subject)))
		line("arguments", text.Args(q.Argv, 8*wire.MaxQuestion))
		for _, f := range q.Files {
			line("file", FileShown(f))
		}
		line("in", text.Visible(string(q.Cwd)))
	} else {
		line(q.Kind, text.Visible(string(q.Subject)))
	}
	line("command", text.Visible(q.Command))
	if q.Rule != nil {
		line("rule", text.Visible(q.Rule.String()))
	}
	line("message", text.Visible(q.Message))
	if n := strings.Count(b.String(), "\n"); n > rows-2 {
		fmt.Fprintf(&b, "question %s has %d lines: scroll up to read all of it\n", q.ID, n)
	}
	return b.String()
}

// lines cuts a text into lines that have less than a number of columns.
func lines(text string, cols int) []string {
	var out []string
	from, used := 0, 0
	for i, r := range text {
		if used += 2; r < utf8.RuneSelf { // other characters have at most two columns
			used--
		}
		if used >= cols && i > from {
			out = append(out, text[from:i])
			from, used = i, 2
		}
	}
	if from < len(text) {
		out = append(out, text[from:])
	}
	return out
}

// FileShown is a file that an answer covers, with the digest of its content.
func FileShown(f wire.QuestionFile) string {
	if f.SHA256 == "" {
		return text.Visible(string(f.Path))
	}
	return text.Visible(string(f.Path)) + " sha256:" + text.Visible(f.SHA256)
}

// What describes everything that an answer covers, on one line.
func What(q wire.Question) string {
	if q.Kind != wire.AskExec {
		return text.Visible(string(q.Subject))
	}
	shown := fmt.Sprintf("%s: %s (in %s)", text.Visible(string(q.Subject)), text.Args(q.Argv, 8*wire.MaxQuestion), text.Visible(string(q.Cwd)))
	for _, f := range q.Files {
		if f.Path != q.Subject || f.SHA256 != "" {
			shown += ", " + FileShown(f)
		}
	}
	return shown
}

// early takes what was typed before the question could be answered.
func (p *Prompt) early(id string, b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.disturbed = true
	for _, c := range b {
		switch {
		case p.shown != id:
		case c == interrupted:
			p.refuse()
		case !p.open:
			p.line.key(c)
		}
	}
}

// refuse answers no: Ctrl-C was typed. The program on the command's terminal gets it too.
func (p *Prompt) refuse() {
	p.reply(false, false)
	p.keys.pass([]byte{interrupted})
}

// typed takes what was typed at the question that is shown.
func (p *Prompt) typed(turn int, b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range b {
		if p.turn != turn {
			return // what follows an answer belongs to nothing
		}
		switch key := p.line.key(c); {
		case key == interrupted:
			p.refuse()
		case key == enter:
			p.entered(p.line.take())
		case !p.echo():
			fmt.Fprint(p.screen, p.line.echo(key))
		}
	}
}

// entered answers the question with a line. Any other line asks again.
func (p *Prompt) entered(word string) {
	if !p.echo() {
		fmt.Fprintln(p.screen)
	}
	switch strings.ToLower(strings.TrimSpace(word)) {
	case "y", "yes":
		p.reply(true, false)
	case "a", "always":
		p.reply(true, true)
	case "n", "no":
		p.reply(false, false)
	default:
		fmt.Fprint(p.screen, "type y, a or n: ")
	}
}

// reply answers the question that is shown, and shows the next.
func (p *Prompt) reply(allow, always bool) {
	id := p.shown
	p.waiting = slices.DeleteFunc(slices.Clone(p.waiting), func(q wire.Pending) bool { return q.ID == id })
	err := p.answer(wire.ApprovalAnswer{ID: id, Allow: allow, Always: always, By: p.by})
	if err != nil {
		fmt.Fprintf(p.screen, "agentsh: %s\n", text.Visible(err.Error()))
	}
	p.hide()
	p.show()
}

// deny answers no where that question is shown.
func (p *Prompt) deny(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown == id {
		p.reply(false, false)
	}
}

// gone answers no: the input has ended.
func (p *Prompt) gone() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown != "" {
		p.reply(false, false)
	}
}
