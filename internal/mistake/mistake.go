// Package mistake says what was probably meant by a value that its key does not
// take. Policies and their tests share it, so that one mistake has one answer. Of
// every file that strictyaml reads, [Wrapped] judges the texts.
//
// Every function returns the zero Finding for a value without a known mistake.
// The caller then judges the value by its own rules.
package mistake

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"agentsh/internal/lazy"
)

// Finding is what is wrong with a value, and what to write instead.
type Finding struct{ Message, Hint string }

// Found reports whether there is a mistake.
func (f Finding) Found() bool { return f.Message != "" }

const (
	opening = "“”„‟‘‚‛«»‹›`"
	closing = "“”‘’«»‹›`"
)

// Around finds quotation marks and blanks at the ends of a value that are part of
// it.
func Around(text string) Finding {
	inner := strings.TrimSpace(text)
	if inner != text {
		return Finding{shown(text) + " has blanks at its ends", "write " + quoted(inner)}
	}
	first, _ := utf8.DecodeRuneInString(text)
	last, size := utf8.DecodeLastRuneInString(text)
	switch {
	case len(text) < 2:
		return Finding{}
	case strings.ContainsRune(opening, first), size > 1 && strings.ContainsRune(closing, last):
		bare := strings.TrimSuffix(strings.TrimPrefix(text, string(first)), string(last))
		if !strings.ContainsRune(opening, first) {
			bare = strings.TrimSuffix(text, string(last))
		} else if !strings.ContainsRune(closing, last) {
			bare = strings.TrimPrefix(text, string(first))
		}
		return Finding{"typographic quotation marks are part of the value " + shown(text), "write " + quoted(bare)}
	case first == last && (first == '"' || first == '\''):
		return Finding{"quotation marks are part of the value " + shown(text), "write " + quoted(text[1:len(text)-1])}
	}
	return Finding{}
}

// Wrapped reports whether a text stands in typographic quotation marks as a whole.
func Wrapped(text string) bool {
	first, size := utf8.DecodeRuneInString(text)
	last, _ := utf8.DecodeLastRuneInString(text)
	if size < 2 || len(text) <= size || !strings.ContainsRune(opening, first) || !strings.ContainsRune(closing, last) {
		return false
	}
	return !strings.ContainsAny(strings.TrimSuffix(text[size:], string(last)), opening+closing)
}

var (
	permission = lazy.Regexp(`^[A-Z][A-Za-z]*\((.*)\)$`)
	expression = lazy.Regexp(`^(re|regex|regexp):|^\^|[^\\]\$$`)
	scheme     = lazy.Regexp(`^([A-Za-z][A-Za-z0-9+.-]*)://`)
)

// Program finds mistakes in the name of a program. line says that the rule has
// args for the words after the name.
func Program(text string, line bool) Finding {
	if f := Around(text); f.Found() {
		return f
	}
	if m := permission().FindStringSubmatch(text); m != nil {
		words := strings.Fields(strings.TrimSuffix(strings.TrimSuffix(m[1], "*"), ":"))
		return Finding{shown(text) + " is a permission of an agent's tool, not the name of a program", commandLine(words, line)}
	}
	switch {
	case text == "":
		return Finding{}
	case expression().MatchString(text):
		return Finding{shown(text) + " is a regular expression, and names of programs are globs", "write " + quoted(plainExpression(text))}
	case text[0] == '-' && len(text) > 1:
		return Finding{shown(text) + " is an option, not the name of a program", "write it in args"}
	case text[0] == '!' && len(text) > 1:
		return Finding{"an entry cannot be negated with !", "write a rule for " + text[1:] + " before this one"}
	}
	if list := split(text, ",|;&"); len(list) > 1 {
		return Finding{shown(text) + " is one entry", "write " + listed(list)}
	}
	if words := commandWords(text); len(words) > 1 {
		return Finding{shown(text) + " is a command line, not the name of a program", commandLine(words, line)}
	}
	if strings.Contains(text, "/") || text[0] == '$' {
		return Path(text)
	}
	return Finding{}
}

// commandWords splits a command line. A blank in a directory of a path is not the
// end of a word.
func commandWords(text string) []string {
	at := unescaped(text, " \t")
	if at < 0 {
		return nil
	}
	rest := strings.TrimSpace(text[at:])
	if strings.HasPrefix(text, "/") && strings.Contains(rest, "/") && !strings.HasPrefix(rest, "-") && !strings.HasPrefix(rest, "/") {
		return nil
	}
	return strings.Fields(text)
}

func commandLine(words []string, line bool) string {
	switch {
	case len(words) == 0:
		return "write the base name of a program"
	case !line:
		return "write " + quoted(words[0])
	case len(words) == 1:
		return "write commands: " + listed(words)
	}
	args := slices.Clone(words[1:])
	if args[len(args)-1] == "*" {
		args = args[:len(args)-1]
	}
	return "write commands: " + listed(words[:1]) + " and args: " + listed(append(args, "**")) + `; a blank in a name is written "\ "`
}

func plainExpression(text string) string {
	_, rest, ok := strings.Cut(text, ":")
	if ok && !strings.HasPrefix(text, "^") {
		text = rest
	}
	return strings.ReplaceAll(strings.TrimSuffix(strings.TrimPrefix(text, "^"), "$"), ".*", "*")
}

// Path finds mistakes in a path or a glob of paths inside a sandbox.
func Path(text string) Finding {
	if f := Around(text); f.Found() {
		return f
	}
	if m := scheme().FindStringSubmatch(text); m != nil {
		if rest := text[len(m[0]):]; (m[1] == "file" || m[1] == "unix") && strings.HasPrefix(rest, "/") {
			return Finding{shown(text) + " is a URL, not a path", "write " + quoted(rest)}
		}
		return Finding{shown(text) + " is a URL, not a path", "hosts belong in network_rules"}
	}
	if rest, ok := strings.CutPrefix(text, "unix:"); ok {
		return Finding{shown(text) + " is an address, not a path", "write " + quoted(rest)}
	}
	for _, option := range []string{":ro", ":rw"} {
		if stem, ok := strings.CutSuffix(text, option); ok {
			return Finding{shown(text) + " ends with a mount option", "write " + quoted(stem) + " and the operations"}
		}
	}
	if list := splitPaths(text); len(list) > 1 {
		return Finding{shown(text) + " is one entry", "write " + listed(list)}
	}
	return relative(text)
}

var bareVariable = lazy.Regexp(`^\$([A-Za-z_][A-Za-z0-9_]*)`)

// relative finds values that do not begin with a slash.
func relative(text string) Finding {
	switch {
	case text == "" || text[0] == '/' || strings.HasPrefix(text, "**") || strings.HasPrefix(text, "${"):
		return Finding{}
	case text == "~" || strings.HasPrefix(text, "~/"):
		return Finding{"~ is not expanded", "write ${HOME}" + text[1:]}
	case text[0] == '~':
		return Finding{"~ is not expanded", "write the directory"}
	case bareVariable().MatchString(text):
		return Finding{shown(text) + ": a variable has braces", "write " + quoted(bareVariable().ReplaceAllString(text, "${$1}"))}
	case text[0] == '!':
		return Finding{"an entry cannot be negated with !", "write a rule for " + text[1:] + " before this one"}
	case len(text) > 2 && text[1] == ':' && text[2] == '\\':
		return Finding{shown(text) + " is a path of Windows", "write it with slashes from the root, as /c/x"}
	case text == ".":
		return Finding{matchesNoPath(text), `write "${WORKSPACE}"`}
	case !strings.Contains(text, "/"):
		return Finding{matchesNoPath(text), "write " + quoted("**/"+text) + " for it anywhere, or " + quoted("${WORKSPACE}/"+text)}
	}
	return Finding{matchesNoPath(text), "write " + quoted("${WORKSPACE}/"+strings.TrimPrefix(text, "./"))}
}

// File is a finding about a key that takes the path of one file instead of a glob.
func (f Finding) File(text string) Finding {
	if f.Message != matchesNoPath(text) && (f.Found() || !strings.HasPrefix(text, "**")) {
		return f
	}
	inside := strings.TrimSuffix("${WORKSPACE}/"+strings.TrimLeft(text, "*./"), "/")
	return Finding{"path " + shown(text) + " is not a clean absolute path: paths begin with a slash", "write " + quoted(inside)}
}

func matchesNoPath(text string) string {
	return "pattern " + strconv.Quote(text) + ": it matches no path: paths begin with a slash, so the pattern begins with / or **/"
}

// splitPaths splits a value that holds several absolute paths.
func splitPaths(text string) []string {
	var out []string
	start, depth := 0, 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\':
			i++
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		case depth == 0 && i > start && strings.IndexByte(",;: ", c) >= 0 && rooted(strings.TrimLeft(text[i+1:], " ")):
			out = append(out, strings.TrimSpace(text[start:i]))
			start = i + 1
		}
	}
	return append(out, strings.TrimSpace(text[start:]))
}

func rooted(text string) bool { return strings.HasPrefix(text, "/") || strings.HasPrefix(text, "~/") }

// Word finds mistakes in one word of arguments.
func Word(text string) Finding {
	if f := Around(text); f.Found() && strings.TrimSpace(text) == text {
		return f
	}
	for _, dash := range []string{"–", "—"} {
		if rest, ok := strings.CutPrefix(text, dash); ok {
			word := "--" + rest
			if utf8.RuneCountInString(rest) == 1 {
				word = "-" + rest
			}
			return Finding{shown(text) + " begins with a typographic dash", "write " + quoted(word)}
		}
	}
	if at := unescaped(text, " \t"); at > 0 && text[0] == '-' && !strings.Contains(text[:at], "=") {
		return Finding{shown(text) + " is one argument with a blank in it", "write " + listed(strings.Fields(text))}
	}
	return Finding{}
}

// Variable finds mistakes in the name of an environment variable.
func Variable(text string) Finding {
	if f := Around(text); f.Found() {
		return f
	}
	bare := strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(text, "$"), "{"), "}")
	if list := split(text, ", ;"); len(list) > 1 {
		return Finding{shown(text) + " is one entry", "write " + listed(list)}
	}
	if strings.HasPrefix(text, "$") {
		return Finding{shown(text) + " is the value of a variable, not its name", "write " + quoted(bare)}
	}
	return Finding{}
}

// split splits at separators that stand outside braces and brackets.
func split(text, separators string) []string {
	var out []string
	depth, start := 0, 0
	add := func(part string) {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\':
			i++
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		case depth == 0 && strings.IndexByte(separators, c) >= 0:
			add(text[start:i])
			start = i + 1
		}
	}
	add(text[start:])
	return out
}

// unescaped returns the index of the first of chars that no backslash escapes, or -1.
func unescaped(text, chars string) int {
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' {
			i++
		} else if strings.IndexByte(chars, text[i]) >= 0 {
			return i
		}
	}
	return -1
}

func shown(text string) string { return strconv.Quote(shorten(text)) }

func shorten(text string) string {
	if len(text) > 60 {
		return strings.ToValidUTF8(text[:60], "") + "..."
	}
	return text
}

// plain matches texts that YAML reads as themselves without quotation marks.
var plain = lazy.Regexp(`^[A-Za-z_./][A-Za-z0-9_./+-]*$`)

func quoted(text string) string {
	if plain().MatchString(text) {
		return text
	}
	return strconv.Quote(text)
}

func listed(list []string) string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = quoted(s)
	}
	return "[" + strings.Join(out, ", ") + "]"
}
