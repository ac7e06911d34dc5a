package asking

// Keys of a terminal.
const (
	interrupted = 0x03
	eot         = 0x04
	erase       = 0x7f
	enter       = '\r'
	nothing     = 0
)

// mostTyped bounds a line, in bytes.
const mostTyped = 64

// line is what was typed at a question. Control sequences are no part of it: a terminal
// sends them for keys, for the mouse and as answers to what a command wrote.
type line struct {
	text  []byte
	state byte // of a sequence: 0, its introducer, or 'x' for the string of one
}

// key takes one byte. It returns interrupted, enter, erase, a byte that belongs to the
// line, or nothing.
func (l *line) key(c byte) byte {
	if l.state != 0 || c == 0x1b {
		return l.sequence(c)
	}
	switch {
	case c == interrupted:
		return interrupted
	case c == '\r' || c == '\n':
		return enter
	case c == eot && len(l.text) == 0:
		l.text = append(l.text, 'n')
		return enter
	case c == erase || c == '\b':
		if len(l.text) == 0 {
			return nothing
		}
		l.text = l.text[:len(l.text)-1]
		return erase
	case c < ' ' || len(l.text) == mostTyped:
		return nothing
	}
	l.text = append(l.text, c)
	return c
}

// sequence takes one byte of a control sequence.
func (l *line) sequence(c byte) byte {
	switch l.state {
	case 0:
		l.state = 0x1b
	case 0x1b:
		l.state = 0
		switch c {
		case '[', 'O':
			l.state = c
		case ']', 'P', '_', '^', 'X':
			l.state = 'x'
		}
	case '[':
		if c >= 0x40 && c <= 0x7e {
			l.state = 0
		}
	case 'O':
		l.state = 0
	case 'x': // ends with BEL, or with ESC and a backslash
		switch c {
		case 0x07:
			l.state = 0
		case 0x1b:
			l.state = 0x1b
		}
	}
	if c == interrupted {
		l.state = 0
		return interrupted
	}
	return nothing
}

// take returns the line and begins the next.
func (l *line) take() string {
	text := string(l.text)
	l.text = l.text[:0]
	return text
}

// echo is what a terminal shows for a key.
func (l *line) echo(key byte) string {
	switch {
	case key == nothing:
		return ""
	case key == erase:
		return "\b \b"
	case key >= ' ' && key < 0x7f:
		return string(rune(key))
	}
	return ""
}
