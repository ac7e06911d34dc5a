package asking

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/foreground"
	"agentsh/internal/text"
)

// endSequence ends a control sequence that a command began.
const endSequence = "\x18\x1b\\"

// inOrder resets what a command may have set: another screen, output that is held back,
// reports of the mouse, lines that do not wrap, insertion, margins, a hidden cursor,
// characters and colours. It removes what stands below.
const inOrder = "\x1b[?2026l\x1b[?1049l\x1b[?9l\x1b[?1000l\x1b[?1001l\x1b[?1002l\x1b[?1003l\x1b[?1004l\x1b[?2004l" +
	"\x1b[!p\x1b[?6l\x1b[?69l\x1b[?7h\x1b[4l\x1b[4i\x1b[r\x1b(B\x0f\x1b[0m\x1b[?25h\r\n\x1b[J"

// screen is the output side of a terminal that a command and questions share.
type screen struct {
	w     io.Writer  // the terminal
	turn  *os.File   // is locked while a question is shown; nil: nobody else asks
	mu    sync.Mutex // held for each write of the command to it, and while a question is shown
	modes modes      // that the command has set
	wrote int        // writes of the command
	kept  []string   // notices that wait for the end of a whole-screen program
	late  []late     // notices that wait for the command to show them itself
	mid   bool       // the command's last byte was not the end of a line

	pipes  []*os.File   // where else the command writes: their readers may write to the terminal
	flying atomic.Int32 // writes to them that have begun

	shown *foreground.Shown // refusals in what the command writes
}

func newScreen(w io.Writer) *screen {
	return &screen{w: w, shown: foreground.NewShown(text.DeniedPrefix)}
}

// share returns a writer of the command, which waits while a question is shown. One that
// is no terminal waits too: what it leads to may write to the terminal, as tee does.
func (s *screen) share(w io.Writer) io.Writer {
	switch f := foreground.FileOf(w); {
	case foreground.IsTerminal(w):
		return shared{s, s.shown.Watch(w)}
	case f == nil:
		return w
	default:
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeNamedPipe != 0 {
			s.pipes = append(s.pipes, f)
		}
		return apart{s, w}
	}
}

// apart is a writer that is no terminal. A write that blocks does not keep a question back.
type apart struct {
	s *screen
	w io.Writer
}

func (a apart) Write(b []byte) (int, error) {
	a.s.mu.Lock()
	a.s.wrote++
	a.s.flying.Add(1)
	a.s.mu.Unlock()
	defer a.s.flying.Add(-1)
	return a.w.Write(b)
}

type shared struct {
	s *screen
	w io.Writer
}

func (h shared) Write(b []byte) (int, error) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	if len(h.s.late) > 0 && !bytes.Contains(b, []byte(text.DeniedPrefix)) { // another program writes, such as a prompt
		h.s.overdue(len(h.s.late))
		h.s.print()
	}
	n, err := h.w.Write(b)
	h.s.wrote++
	if n > 0 {
		h.s.modes.read(b[:n])
		h.s.mid = b[n-1] != '\n'
	}
	h.s.print()
	return n, err
}

// settling is a time without output, after which a question is shown.
const settling = 50 * time.Millisecond

// settle waits for output that was written before a question and is still on its way. A
// command that never stops writing is waited for ten times at most.
func (s *screen) settle() {
	for range 10 {
		before := s.writes()
		<-time.After(settling)
		if s.writes() == before {
			return
		}
	}
}

func (s *screen) writes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wrote
}

// hold stops the command's output and puts the terminal in order. It waits for the question of
// another process on the terminal: one line cannot answer two.
func (s *screen) hold() {
	s.lock(unix.LOCK_EX)
	s.settle()
	s.mu.Lock()
	for i := 0; i < 10 && s.unread(); i++ { // a reader may have stopped
		<-time.After(settling)
	}
	s.write(endSequence + s.modes.off() + inOrder)
}

// unread reports whether output of the command is on its way through a pipe.
func (s *screen) unread() bool {
	n := int(s.flying.Load())
	for _, f := range s.pipes {
		if raw, err := f.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { // fails when it was closed: nothing is on its way
				waiting, _ := unix.IoctlGetInt(int(fd), unix.TIOCINQ) // 0: it has no reader
				n += waiting
			})
		}
	}
	return n > 0
}

// release lets the command write on. It reports whether the command uses the whole
// screen.
func (s *screen) release() (whole bool) {
	defer s.mu.Unlock()
	s.write(s.modes.on())
	s.mid = false
	s.lock(unix.LOCK_UN)
	return s.modes.whole()
}

func (s *screen) lock(how int) {
	if s.turn == nil {
		return
	}
	if raw, err := s.turn.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { // fails when it was closed: the command has ended
			for unix.Flock(int(fd), how) == unix.EINTR {
			}
		})
	}
}

// Write writes while the screen is held.
func (s *screen) Write(b []byte) (int, error) {
	s.write(strings.ReplaceAll(string(b), "\n", "\r\n"))
	return len(b), nil
}

func (s *screen) write(text string) {
	_, _ = io.WriteString(s.w, text) // a terminal that has gone is noticed when it is read
}

const mostKept = 100

// notice prints a line as soon as the command does not use the whole screen.
func (s *screen) notice(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.kept) < mostKept {
		s.kept = append(s.kept, line)
	}
	s.print()
}

// showing is how long a command has to print the answer of a refused request.
const showing = 200 * time.Millisecond

// late is a notice about a request that was refused with an answer.
type late struct {
	line  string
	since time.Time // a command that showed the first line since then showed the notice
}

// noticeUnlessShown prints a line unless the command shows its first line itself.
func (s *screen) noticeUnlessShown(line string) {
	s.mu.Lock()
	s.late = append(s.late, late{line, time.Now().Add(-showing)}) // the answer may be earlier than its event
	s.mu.Unlock()
	time.AfterFunc(showing, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.late) > 0 { // end leaves none
			s.overdue(1)
			s.print()
		}
	})
}

// overdue has the first n late notices printed. It is called with mu held.
func (s *screen) overdue(n int) {
	for _, l := range s.late[:n] {
		first, _, _ := strings.Cut(l.line, "\n")
		if !s.shown.Since(first, l.since) && len(s.kept) < mostKept {
			s.kept = append(s.kept, l.line)
		}
	}
	s.late = s.late[n:]
}

// print prints the notices. It is called with mu held.
func (s *screen) print() {
	if len(s.kept) == 0 || s.modes.whole() {
		return
	}
	text := strings.ReplaceAll(strings.Join(s.kept, "\n")+"\n", "\n", "\r\n")
	if s.mid {
		text = "\r\n" + text
	}
	s.mid, s.kept = false, nil
	s.write(text)
}

// end prints the notices that are left.
func (s *screen) end() {
	if !s.mu.TryLock() {
		return // a write of the command blocks: the terminal is stopped
	}
	defer s.mu.Unlock()
	s.modes = modes{}
	s.overdue(len(s.late))
	s.print()
}

// mostModes bounds the modes that are remembered.
const mostModes = 64

// modes are the private modes of a terminal that differ from the usual ones, such as
// another screen, the reports of a mouse, a hidden cursor.
type modes struct {
	differ map[int]bool
	at     part // of a control sequence
	params []byte

	colours  bool   // the usual ones may have changed
	held     bool   // output may be held back by a string
	images   bool   // may lie above the text
	keys     bool   // may be sent as sequences
	modified string // which of them, as parameters
}

// part is what was read of a control sequence.
type part byte

const (
	inText part = iota
	inEscape
	inLatin    // after the first byte of a control character in UTF-8
	inSequence // CSI
	inPrivate  // CSI ?
	inOther    // CSI and another private character
	inCommand  // OSC
)

// harmless are the commands to a terminal that change nothing of how text is shown: titles,
// the directory, links, notices, the clipboard, marks of prompts.
var harmless = []string{"0", "1", "2", "7", "8", "9", "52", "133", "633", "777"}

// usual is the value that a mode has in a terminal that nobody changed: lines wrap
// and the cursor is shown.
func usual(mode int) bool { return mode == 7 || mode == 25 }

// whole reports whether a program uses the whole screen.
func (m *modes) whole() bool { return m.differ[47] || m.differ[1047] || m.differ[1049] }

// off returns what sets the usual modes, and on what sets them as they were.
func (m *modes) off() string {
	set := m.sequences(false)
	for _, reset := range []struct {
		needed bool
		text   string
	}{
		{m.held, "\x1bP=2s\x1b\\"}, {m.images, "\x1b_Ga=d,q=2\x1b\\"}, {m.keys, "\x1b[>0u"}, {m.modified != "", "\x1b[>4;0m"},
		{m.colours, "\x1b]R\x1b\\\x1b]104\x1b\\\x1b]105\x1b\\\x1b]110\x1b\\\x1b]111\x1b\\"},
	} {
		if reset.needed {
			set += reset.text
		}
	}
	return set
}

func (m *modes) on() string {
	set := ""
	if m.keys {
		set += "\x1b[<u"
	}
	if m.modified != "" {
		set += "\x1b[>" + m.modified + "m"
	}
	return set + m.sequences(true)
}

func (m *modes) sequences(again bool) string {
	var b strings.Builder
	for _, mode := range slices.Sorted(maps.Keys(m.differ)) {
		final := 'l'
		if usual(mode) != again {
			final = 'h'
		}
		fmt.Fprintf(&b, "\x1b[?%d%c", mode, final)
	}
	return b.String()
}

// read follows the output of a command.
func (m *modes) read(b []byte) {
	for _, c := range b {
		if m.at != inText || c == 0x1b || c == 0xc2 {
			m.step(c)
		}
	}
}

func (m *modes) step(c byte) {
	at := m.at
	m.at = inText
	switch {
	case c == 0x1b:
		m.at = inEscape
	case at == inText && c == 0xc2:
		m.at = inLatin
	case at == inLatin:
		if c >= 0x80 && c < 0xa0 {
			m.begin(c - 0x40)
		}
	case c < ' ' && c != 0x18 && c != 0x1a && at != inCommand: // has its effect at once
		m.at = at
	case at == inEscape:
		m.begin(c)
	case at == inSequence && c == '?':
		m.at = inPrivate
	case at == inSequence && (c == '>' || c == '='):
		m.at, m.params = inOther, append(m.params, c)
	case at > inSequence && (c == ';' || c == ':' || c >= '0' && c <= '9') && len(m.params) < 64 && (at != inCommand || c != ';'):
		m.at, m.params = at, append(m.params, c)
	case at > inSequence:
		m.finish(at, c, string(m.params))
	}
}

// begin takes the byte after an escape.
func (m *modes) begin(c byte) {
	m.params = m.params[:0]
	switch c {
	case '[':
		m.at = inSequence
	case ']':
		m.at = inCommand
	case 'P':
		m.held = true
	case '_':
		m.images = true
	case 'c': // everything is reset
		*m = modes{}
	}
}

// finish takes the last byte of a sequence, or what follows the number of a command.
func (m *modes) finish(at part, c byte, params string) {
	switch {
	case at == inCommand:
		m.colours = m.colours || !slices.Contains(harmless, params)
	case at == inPrivate && (c == 'h' || c == 'l'):
		for _, text := range strings.Split(params, ";") {
			if mode, err := strconv.ParseUint(text, 10, 16); err == nil {
				m.set(int(mode), c == 'h')
			}
		}
	case at == inOther && c == 'u':
		m.keys = true
	case at == inOther && c == 'm' && (params == ">" || params == ">4"):
		m.modified = ""
	case at == inOther && c == 'm' && strings.HasPrefix(params, ">4;"):
		m.modified = params[1:]
	}
}

func (m *modes) set(mode int, on bool) {
	if on == usual(mode) {
		delete(m.differ, mode)
		return
	}
	if m.differ == nil {
		m.differ = map[int]bool{}
	}
	if len(m.differ) < mostModes {
		m.differ[mode] = true
	}
}
