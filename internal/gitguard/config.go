package gitguard

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"agentsh/internal/lazy"

	"github.com/go-git/gcfg/v2/scanner"
	"github.com/go-git/gcfg/v2/token"
)

// MaxFile is the size in bytes of the largest file that is checked.
const MaxFile = 1 << 20

// Location describes where a file is, with the paths that commands use.
type Location struct {
	Dir   string   // the directory that paths in the file are relative to, absolute and clean
	Roots []string // the trees that the guard covers, absolute and clean
	Moved bool     // old content was at another path: its relative paths may now refer to other files
}

// Problem is one setting or entry that is not allowed.
type Problem struct {
	File   string // as the caller names it, or as [Scan] found it
	Line   int    // from 1; 0: the whole file
	Key    string // of a configuration, section.subsection.key; else empty
	Reason string
	Hint   string // what to do instead, may be empty
}

// String returns the problem on one line.
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d", p.Line)
	}
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	if p.Key != "" {
		b.WriteString(p.Key + ": ")
	}
	b.WriteString(p.Reason)
	return b.String()
}

// setting is one line of a configuration that sets a variable.
type setting struct {
	section, sub, name string // section and name in lower case
	value              string
	blank              bool // without "=": true
	line               int
}

// key returns the key as git-config(1) shows it.
func (s *setting) key() string {
	if s.sub == "" {
		return s.section + "." + s.name
	}
	return s.section + "." + s.sub + "." + s.name
}

// These lines have one meaning for git and for the library. Every other form is
// refused:
//   - several settings on a line,
//   - continued lines,
//   - tabs in a value,
//   - quotes around a part of a value,
//   - [section.subsection] and [section ""],
//   - escapes except those of quotes, backslashes, newlines and tabs.
var (
	emptyLine   = lazy.Regexp(`^[ \t]*([#;].*)?$`)
	sectionLine = lazy.Regexp(`^[ \t]*\[([A-Za-z][A-Za-z0-9-]*)([ \t]+"((?:[^"\\]|\\["\\])+)")?\][ \t]*([#;].*)?$`)
	settingLine = lazy.Regexp(
		`^[ \t]*([A-Za-z][A-Za-z0-9-]*)[ \t]*(=[ \t]*((?:[^"\\#;\t]|\\["\\nt])*|"(?:[^"\\]|\\["\\nt])*")[ \t]*([#;].*)?)?$`,
	)
)

// parseConfig reads a configuration. A line with two possible meanings is a problem.
func parseConfig(data []byte) ([]setting, []Problem) {
	if len(data) > MaxFile {
		return nil, []Problem{{Reason: fmt.Sprintf("the file has more than %d bytes", MaxFile)}}
	}
	text := strings.ReplaceAll(string(data), "\r\n", "\n")
	lines, problems := readLines(text)
	if len(problems) > 0 {
		return nil, problems
	}
	scanned, err := scanConfig(text)
	if err == nil && len(scanned) != len(lines) {
		err = errMismatch
	}
	if err != nil {
		return nil, []Problem{{Reason: err.Error(), Hint: plainHint}}
	}
	var out []setting
	for i := range scanned {
		line, found := &lines[i], &scanned[i]
		line.value, found.line = found.value, line.line
		if *line != *found {
			return nil, []Problem{{Reason: errMismatch.Error(), Hint: plainHint}}
		}
		if line.name != "" {
			out = append(out, *line)
		}
	}
	return out, nil
}

var errMismatch = errors.New("the file cannot be read in one way only")

const plainHint = "write one setting on a line, as git config does"

// readLines finds sections and settings by line. The library reads the values.
func readLines(text string) ([]setting, []Problem) {
	if !utf8.ValidString(text) {
		return nil, []Problem{{Reason: "the file is not UTF-8 text", Hint: plainHint}}
	}
	var out []setting
	var section, sub string
	for i, line := range strings.Split(text, "\n") {
		if strings.ContainsFunc(line, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
			return nil, []Problem{{Line: i + 1, Reason: "the line holds control characters", Hint: plainHint}}
		}
		if emptyLine().MatchString(line) {
			continue
		}
		if m := sectionLine().FindStringSubmatch(line); m != nil {
			section, sub = lower(m[1]), unescape(m[3])
			out = append(out, setting{section: section, sub: sub, line: i + 1})
			continue
		}
		m := settingLine().FindStringSubmatch(line)
		if m == nil || section == "" {
			return nil, []Problem{{Line: i + 1, Reason: "the line is neither a section nor a setting of plain form", Hint: plainHint}}
		}
		out = append(out, setting{section: section, sub: sub, name: lower(m[1]), blank: m[2] == "", line: i + 1})
	}
	return out, nil
}

// scanConfig reads sections and settings with the library's scanner. A line has one of
// four forms; readLines has refused the others.
func scanConfig(text string) ([]setting, error) {
	files := token.NewFileSet()
	file, err := files.AddFile("", files.Base(), len(text))
	if err != nil {
		return nil, err
	}
	var out []setting
	var s scanner.Scanner
	var wrong error
	if err := s.Init(file, []byte(text), func(_ token.Position, m string) { wrong = errors.New(m) }, 0); err != nil {
		return nil, err
	}
	now := setting{} // of the section that was read last
	var form, words []string
	for {
		_, tok, lit, err := s.Scan()
		if err = errors.Join(err, wrong); err != nil {
			return nil, err
		}
		if tok != token.EOL && tok != token.EOF {
			form, words = append(form, tok.String()), append(words, lit)
			continue
		}
		next := setting{section: now.section, sub: now.sub}
		switch strings.Join(form, " ") {
		case "":
		case "[ IDENT ]":
			now = setting{section: lower(words[1])}
			out = append(out, now)
		case "[ IDENT STRING ]":
			now = setting{section: lower(words[1]), sub: unquote(words[2])}
			out = append(out, now)
		case "IDENT":
			next.name, next.blank = lower(words[0]), true
			out = append(out, next)
		case "IDENT = STRING":
			next.name, next.value = lower(words[0]), unquote(words[2])
			out = append(out, next)
		default:
			return nil, errMismatch
		}
		if tok == token.EOF {
			return out, nil
		}
		form, words = nil, nil
	}
}

// unquote returns the text of a literal without quotes around it. readLines has refused
// quotes inside and other escapes.
func unquote(literal string) string {
	if len(literal) > 1 && strings.HasPrefix(literal, `"`) {
		literal = strings.TrimSuffix(literal[1:], `"`)
	}
	return strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\n`, "\n", `\t`, "\t").Replace(literal)
}

var unescape = strings.NewReplacer(`\\`, `\`, `\"`, `"`).Replace

// lower returns text with ASCII letters in lower case. Names contain no other letters.
func lower(s string) string { return string(bytes.ToLower([]byte(s))) }

// CheckConfig returns the settings of a configuration that are not allowed. A setting
// that old contains with the same value is allowed.
func CheckConfig(data, old []byte, at Location) []Problem {
	list, problems := parseConfig(data)
	if len(problems) > 0 {
		if old != nil && bytes.Equal(data, old) {
			return nil
		}
		return problems
	}
	stays := existing(old)
	for i := range list {
		s := &list[i]
		leads := at.Moved && s.key() == "core.worktree"
		if stays[s.identity()] && !leads {
			continue
		}
		if reason := checkSetting(s, at); reason != "" {
			problems = append(
				problems,
				Problem{Line: s.line, Key: s.key(), Reason: reason, Hint: "leave the setting out, or have the operator make it"},
			)
		}
	}
	return problems
}

// identity returns equal values for settings of the same key.
func (s *setting) identity() string {
	return strings.Join([]string{s.section, s.sub, s.name, fmt.Sprint(s.blank), s.value}, "\x00")
}

// existing returns the settings of the existing configuration. It returns none if that
// cannot be read.
func existing(old []byte) map[string]bool {
	list, _ := parseConfig(old)
	out := make(map[string]bool, len(list))
	for i := range list {
		out[list[i].identity()] = true
	}
	return out
}

// checkSetting returns the reason why a setting is not allowed; empty: it is allowed.
func checkSetting(s *setting, at Location) string {
	key := s.section + "." + s.name
	if s.sub != "" {
		key = s.section + ".*." + s.name
	}
	allowed, known := allowedKeys()[key]
	if !known {
		return "this setting is not one that only describes the repository"
	}
	value := s.value
	if s.blank {
		value = "true"
	}
	return allowed(value, at)
}
