package asking

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"agentsh/internal/foreground"
)

// inOrder ends a control sequence that a command began and resets what it may have
// set: another screen, output that is held back, margins, a hidden cursor,
// characters and colours.
const inOrder = "\x18\x1b\\\x1b[?2026l\x1b[?1049l\x1b[!p\x1b[r\x1b(B\x0f\x1b[0m\x1b[?25h\r\n"

// screen is the output side of a terminal that a command and questions share.
type screen struct {
	w     io.Writer  // the terminal
	mu    sync.Mutex // held for each write of the command, and while a question is shown
	modes modes      // that the command has set
	wrote int        // writes of the command
	kept  []string   // notices that wait for the end of a whole-screen program
	mid   bool       // the command's last byte was not the end of a line
}

// share returns a writer of the command. A terminal waits while a question is shown.
// Other writers stay as they are.
func (s *screen) share(w io.Writer) io.Writer {
	if !foreground.IsTerminal(w) {
		return w
	}
	return shared{s, w}
}

type shared struct {
	s *screen
	w io.Writer
}

func (h shared) Write(b []byte) (int, error) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
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

// hold stops the command's output and puts the terminal in order.
func (s *screen) hold() {
	s.settle()
	s.mu.Lock()
	s.write(s.modes.off() + inOrder)
}

// release lets the command write on. It reports whether the command uses the whole
// screen.
func (s *screen) release() (whole bool) {
	defer s.mu.Unlock()
	s.write(s.modes.on())
	s.mid = false
	return s.modes.whole()
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
	s.print()
}

// mostModes bounds the modes that are remembered.
const mostModes = 64

// modes are the private modes of a terminal that differ from the usual ones, such as
// another screen, the reports of a mouse, a hidden cursor.
type modes struct {
	differ map[int]bool
	at     int // of a sequence: bytes that were recognised
	params []byte
}

// usual is the value that a mode has in a terminal that nobody changed: lines wrap
// and the cursor is shown.
func usual(mode int) bool { return mode == 7 || mode == 25 }

// whole reports whether a program uses the whole screen.
func (m *modes) whole() bool { return m.differ[47] || m.differ[1047] || m.differ[1049] }

// off returns what sets the usual modes, and on what sets them as they were.
func (m *modes) off() string { return m.sequences(false) }
func (m *modes) on() string  { return m.sequences(true) }

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
	for len(b) > 0 {
		if m.at == 0 {
			esc := bytes.IndexByte(b, 0x1b)
			if esc < 0 {
				return
			}
			m.at, b = 1, b[esc+1:]
			continue
		}
		m.step(b[0])
		b = b[1:]
	}
}

func (m *modes) step(c byte) {
	switch {
	case c == 0x1b:
		m.at = 1
	case m.at == 1 && c == '[':
		m.at = 2
	case m.at == 1 && c == 'c': // everything is reset
		m.at, m.differ = 0, nil
	case m.at == 2 && c == '?':
		m.at, m.params = 3, m.params[:0]
	case m.at == 3 && (c == ';' || c >= '0' && c <= '9') && len(m.params) < 64:
		m.params = append(m.params, c)
	case m.at == 3 && (c == 'h' || c == 'l'):
		m.at = 0
		for _, text := range strings.Split(string(m.params), ";") {
			if mode, err := strconv.ParseUint(text, 10, 16); err == nil {
				m.set(int(mode), c == 'h')
			}
		}
	default:
		m.at = 0
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
