package env

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
)

// MaxFile is the maximum size of a .env file in bytes.
const MaxFile = 1 << 20

const (
	maxVars   = 4096 // variables of one .env file
	maxErrors = 20   // problems reported about one .env file
)

// SyntaxError is one problem of a .env file. Line and Column start at 1.
// Columns count bytes.
type SyntaxError struct {
	File   string
	Line   int
	Column int
	Msg    string // contains no value
}

// Error returns "file:line:column: problem".
func (e *SyntaxError) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Msg)
}

// Parse parses a .env file. Each line is NAME=value, optionally after "export".
// Comments, quotes and backslashes work as in a shell, and quoted values may
// span lines. Nothing is expanded or executed. Text that a shell would expand,
// execute or read as a second word is an error. A carriage return before the
// end of an unquoted line is part of the line end. A name may occur twice. The
// error joins one *[SyntaxError] for each problem.
func Parse(name string, data []byte) ([]Var, error) {
	found, err := parse(name, data)
	if err != nil {
		return nil, err
	}
	vars := make([]Var, len(found))
	for i, f := range found {
		vars[i] = f.Var
	}
	return vars, nil
}

// located is a variable with its position.
type located struct {
	Var
	at string // file:line:column
}

// scanner parses one .env file.
type scanner struct {
	file string
	data []byte
	pos  int
	errs []error

	counted, lines int // line ends before the offset counted
}

func parse(name string, data []byte) ([]located, error) {
	s := &scanner{file: name, data: bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))}
	if len(data) > MaxFile {
		s.fail(0, fmt.Sprintf("the file has %d bytes, at most %d are read", len(data), MaxFile))
		return nil, errors.Join(s.errs...)
	}
	var vars []located
	for s.pos < len(s.data) && len(s.errs) < maxErrors {
		start := s.skip(" \t")
		v, found, ok := s.line()
		if !ok {
			s.nextLine()
			continue
		}
		if !found {
			continue
		}
		if len(vars) == maxVars {
			s.fail(start, fmt.Sprintf("more than %d variables", maxVars))
			break
		}
		vars = append(vars, located{Var: v, at: s.at(start)})
	}
	return vars, errors.Join(s.errs...)
}

// at returns the position of an offset for messages.
func (s *scanner) at(offset int) string {
	line, column := s.position(offset)
	return fmt.Sprintf("%s:%d:%d", s.file, line, column)
}

func (s *scanner) position(offset int) (line, column int) {
	if offset < s.counted {
		s.counted, s.lines = 0, 0
	}
	s.lines += bytes.Count(s.data[s.counted:offset], []byte("\n"))
	s.counted = offset
	return 1 + s.lines, offset - bytes.LastIndexByte(s.data[:offset], '\n')
}

func (s *scanner) fail(offset int, msg string) {
	line, column := s.position(offset)
	s.errs = append(s.errs, &SyntaxError{File: s.file, Line: line, Column: column, Msg: msg})
}

// skip advances over any of the bytes in set and returns the new offset.
func (s *scanner) skip(set string) int {
	for s.pos < len(s.data) && strings.IndexByte(set, s.data[s.pos]) >= 0 {
		s.pos++
	}
	return s.pos
}

func (s *scanner) nextLine() {
	if i := bytes.IndexByte(s.data[s.pos:], '\n'); i >= 0 {
		s.pos += i + 1
		return
	}
	s.pos = len(s.data)
}

// peek returns the next byte, or 0 at the end of the file.
func (s *scanner) peek() byte { return s.peekAt(0) }

func (s *scanner) peekAt(n int) byte {
	if s.pos+n < len(s.data) {
		return s.data[s.pos+n]
	}
	return 0
}

// lineEnd reports whether the unquoted line ends at the current offset.
func (s *scanner) lineEnd() bool {
	return s.pos == len(s.data) || s.peek() == '\n' || s.peek() == '\r' && (s.peekAt(1) == '\n' || s.pos+1 == len(s.data))
}

// line parses one line. A quoted value may span several. If ok is false, a
// problem was recorded and the caller skips the rest of the line.
func (s *scanner) line() (v Var, found, ok bool) {
	if s.lineEnd() || s.peek() == '#' {
		s.nextLine()
		return Var{}, false, true
	}
	s.export()
	start := s.pos
	for s.pos < len(s.data) && nameByte(s.data[s.pos], s.pos == start) {
		s.pos++
	}
	v.Name = string(s.data[start:s.pos])
	if v.Name == "" || s.pos == len(s.data) || s.peek() != '=' {
		s.fail(s.pos, "not NAME=value: a name has letters, digits and _, does not start with a digit and touches its =")
		return v, false, false
	}
	s.pos++
	if v.Value, ok = s.value(); !ok {
		return v, false, false
	}
	s.skip(" \t")
	if s.lineEnd() || s.peek() == '#' {
		s.nextLine()
		return v, true, true
	}
	s.fail(s.pos, "text after the value: a value with blanks needs quotes, and one line sets one variable")
	return v, false, false
}

// export skips the word export.
func (s *scanner) export() {
	rest, ok := bytes.CutPrefix(s.data[s.pos:], []byte("export"))
	if ok && len(rest) > 0 && (rest[0] == ' ' || rest[0] == '\t') {
		s.pos += len("export")
		s.skip(" \t")
	}
}

// value parses quoted and unquoted parts up to a blank or the end of the line.
func (s *scanner) value() (string, bool) {
	var out []byte
	start := s.pos
	for !s.lineEnd() {
		c := s.peek()
		var ok bool
		switch c {
		case ' ', '\t':
			return string(out), true
		case '\'':
			out, ok = s.single(out)
		case '"':
			out, ok = s.double(out)
		default:
			out, ok = s.plain(out, start)
		}
		if !ok {
			return "", false
		}
	}
	return string(out), true
}

// single parses '...'. Every byte is literal.
func (s *scanner) single(out []byte) ([]byte, bool) {
	end := bytes.IndexByte(s.data[s.pos+1:], '\'')
	if end < 0 {
		return s.unclosed("'")
	}
	text := s.data[s.pos+1 : s.pos+1+end]
	if i := bytes.IndexByte(text, 0); i >= 0 {
		s.fail(s.pos+1+i, "NUL byte")
		s.pos += 2 + end
		return nil, false
	}
	s.pos += 2 + end
	return append(out, text...), true
}

// unclosed records the problem at the opening quote and stops parsing. The rest
// of the file may be inside or outside the quotes.
func (s *scanner) unclosed(quote string) ([]byte, bool) {
	s.fail(s.pos, "the "+quote+" is never closed")
	s.pos = len(s.data)
	return nil, false
}

// double parses "...". A backslash escapes $ ` " \ and the end of a line.
func (s *scanner) double(out []byte) ([]byte, bool) {
	open := s.pos
	s.pos++
	good := true
	for s.pos < len(s.data) {
		c := s.data[s.pos]
		switch {
		case c == '"':
			s.pos++
			return out, good
		case c == '\\' && s.pos+1 < len(s.data) && strings.IndexByte("$`\"\\\n", s.data[s.pos+1]) >= 0:
			if s.data[s.pos+1] != '\n' {
				out = append(out, s.data[s.pos+1])
			}
			s.pos += 2
		default:
			good = s.literal(c, false) && good
			out = append(out, c)
			s.pos++
		}
	}
	s.pos = open
	return s.unclosed(`"`)
}

// literal records a problem if a byte is not literal in a shell.
func (s *scanner) literal(c byte, unquoted bool) bool {
	next := s.peekAt(1)
	switch {
	case c == 0:
		s.fail(s.pos, "NUL byte")
	case c == '`':
		s.fail(s.pos, "` would run a command in a shell: nothing is run here, write it in single quotes")
	case c == '$' && (next == '(' || unquoted && (next == '\'' || next == '"')):
		s.fail(s.pos, "$"+string(next)+" is shell syntax that is not read here: write the value in single quotes")
	case c == '$' && expands(next):
		s.fail(s.pos, "$ would be expanded by a shell: nothing is expanded here, write it in single quotes")
	default:
		return true
	}
	return false
}

// expands reports whether a shell expands $ followed by c.
func expands(c byte) bool {
	return c != 0 && (nameByte(c, false) || strings.IndexByte("{[@*#?$!-", c) >= 0)
}

// plain parses one unquoted byte or escape of the value that began at start.
func (s *scanner) plain(out []byte, start int) ([]byte, bool) {
	c := s.peek()
	switch {
	case c == '\\':
		return s.escape(out)
	case strings.IndexByte(";&|<>()", c) >= 0:
		s.fail(s.pos, "an unquoted "+string(c)+" ends the value in a shell: write it in quotes")
		return nil, false
	case c == '~' && (s.pos == start || s.data[s.pos-1] == ':'):
		s.fail(s.pos, "~ would be expanded by a shell: nothing is expanded here, write it in quotes")
		return nil, false
	case !s.literal(c, true):
		return nil, false
	}
	s.pos++
	return append(out, c), true
}

// escape parses a backslash outside quotes.
func (s *scanner) escape(out []byte) ([]byte, bool) {
	switch {
	case s.pos+1 == len(s.data):
		s.fail(s.pos, `\ at the end of the file`)
		return nil, false
	case s.data[s.pos+1] == 0:
		s.fail(s.pos+1, "NUL byte")
		return nil, false
	case s.data[s.pos+1] != '\n':
		out = append(out, s.data[s.pos+1])
	}
	s.pos += 2
	return out, true
}

// Format returns a .env file with one NAME='value' for each variable, in the
// given order. A shell that sources it and [Parse] return every value byte for
// byte. It returns an error for NUL bytes, malformed names and names that a
// shell sets itself.
func Format(vars []Var) ([]byte, error) {
	var out []byte
	for _, v := range vars {
		if !ValidName(v.Name) {
			return nil, fmt.Errorf("%q is not a variable name: letters, digits and _, not starting with a digit", v.Name)
		}
		if shellOwned(v.Name) {
			return nil, fmt.Errorf("%s: shells set this variable themselves, it would not be read back", v.Name)
		}
		if strings.ContainsRune(v.Value, 0) {
			return nil, fmt.Errorf("%s: the value has a NUL byte", v.Name)
		}
		out = append(out, v.Name...)
		out = append(out, "='"...)
		out = append(out, strings.ReplaceAll(v.Value, "'", `'\''`)...)
		out = append(out, "'\n"...)
	}
	return out, nil
}

// shellOwned reports whether a shell rejects or interprets assignments of a
// variable. See bash(1), Shell Variables.
func shellOwned(name string) bool {
	switch name {
	case "_", "UID", "EUID", "PPID", "GROUPS", "DIRSTACK", "FUNCNAME", "PIPESTATUS", "LINENO", "RANDOM", "SRANDOM", "SECONDS",
		"EPOCHSECONDS", "EPOCHREALTIME", "HISTCMD", "OPTIND", "SHELLOPTS", "BASHOPTS", "BASHPID", "POSIXLY_CORRECT":
		return true
	}
	return strings.HasPrefix(name, "BASH_") && name != "BASH_ENV" || strings.HasPrefix(name, "COMP_")
}
