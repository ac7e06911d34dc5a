package main

import (
	"bufio"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/text"
	"agentsh/internal/wire"
)

// prompt shows one question after the other on a terminal. Input from before a
// question is shown does not answer it.
type prompt struct {
	in     io.Reader
	out    io.Writer
	answer func(wire.ApprovalAnswer) error
	by     string
	gate   sync.Locker // held while a question is on the terminal

	mu      sync.Mutex
	shown   string // id of the question on the terminal; empty: none
	code    string // that an answer must contain
	waiting []wire.Pending
}

// newPrompt reads in until its end, or that of this process.
func newPrompt(in io.Reader, out io.Writer, gate sync.Locker, answer func(wire.ApprovalAnswer) error) *prompt {
	p := &prompt{in: in, out: out, gate: gate, answer: answer, by: answerer() + " on a terminal"}
	go p.read()
	return p
}

// update replaces the waiting questions and shows the next one.
func (p *prompt) update(list []wire.Pending) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = list
	if p.shown != "" && !p.waits(p.shown) {
		fmt.Fprintf(p.out, "\nagentsh: question %s waits no more\n", p.shown)
		p.hide()
	}
	p.show()
	return nil
}

func (p *prompt) waits(id string) bool {
	return slices.ContainsFunc(p.waiting, func(q wire.Pending) bool { return q.ID == id })
}

// show puts the oldest question on the terminal if none is. It is called with mu
// held.
func (p *prompt) show() {
	if p.shown != "" || len(p.waiting) == 0 {
		return
	}
	q := p.waiting[0]
	if f, ok := p.in.(*os.File); ok {
		_ = unix.IoctlSetInt(int(f.Fd()), unix.TCFLSH, unix.TCIFLUSH) // a pipe has nothing typed ahead
	}
	p.gate.Lock()
	p.shown, p.code = q.ID, strings.ToLower(rand.Text()[:3])
	fmt.Fprint(p.out, questionText(q, p.code, time.Now()))
}

// hide ends the question that is shown. It is called with mu held.
func (p *prompt) hide() {
	p.shown = ""
	p.gate.Unlock()
}

// end shows nothing more.
func (p *prompt) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = nil
	if p.shown != "" {
		p.hide()
	}
}

// questionText is the text of a question. It shows everything that an answer covers.
func questionText(q wire.Pending, code string, now time.Time) string {
	var b strings.Builder
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&b, "  %-10s %s\n", name, value)
		}
	}
	fmt.Fprintf(&b, "\nagentsh: question %s, denied in %s\n", q.ID, q.Ends.Sub(now).Round(time.Second))
	if q.Kind == wire.AskExec {
		line("run", text.Visible(q.Subject))
		line("arguments", text.Args(q.Argv, 8*wire.MaxQuestion))
		for _, f := range q.Files {
			line("file", fileShown(f))
		}
		line("in", text.Visible(q.Cwd))
	} else {
		line(q.Kind, text.Visible(q.Subject))
	}
	line("command", text.Visible(q.Command))
	line("rule", text.Visible(ruleName(q.Rule)))
	line("message", text.Visible(q.Message))
	fmt.Fprintf(&b, "type \"yes %s\" to allow this once, \"no\" to deny: ", code)
	return b.String()
}

// fileShown is a file that an answer covers, with the digest of its content.
func fileShown(f wire.QuestionFile) string {
	if f.SHA256 == "" {
		return text.Visible(f.Path)
	}
	return text.Visible(f.Path) + " sha256:" + text.Visible(f.SHA256)
}

// maxTyped is the longest line that is read, in bytes.
const maxTyped = 4096

// read reads the answers.
func (p *prompt) read() {
	lines := bufio.NewReaderSize(p.in, maxTyped)
	for {
		line, tooLong, err := lines.ReadLine()
		if err != nil {
			return
		}
		if !tooLong {
			p.typed(strings.TrimSpace(string(line)))
		}
	}
}

// typed answers the question that is shown. Anything but yes with its code, or
// no, asks again.
func (p *prompt) typed(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown == "" {
		return
	}
	allow := line == "yes "+p.code
	if !allow && line != "no" {
		fmt.Fprintf(p.out, "type \"yes %s\" or \"no\": ", p.code)
		return
	}
	id := p.shown
	p.hide()
	p.waiting = slices.DeleteFunc(slices.Clone(p.waiting), func(q wire.Pending) bool { return q.ID == id })
	if err := p.answer(wire.ApprovalAnswer{ID: id, Allow: allow, By: p.by}); err != nil {
		fmt.Fprintf(p.out, "agentsh: %s\n", text.Visible(err.Error()))
	}
	p.show()
}
