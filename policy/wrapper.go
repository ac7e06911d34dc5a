package policy

import (
	"errors"
	"strings"
	"sync"
)

// Payload is a command in the arguments of another command.
type Payload struct {
	Program string   // as written: a bare name or a path
	Argv    []string // its argument vector, Argv[0] included
	// InProcess is set if the wrapper runs the payload without a separate
	// execve: a dynamic loader, or an applet of a multi-call program.
	InProcess bool
	// Applet is set if Program is the name of an applet, not of a file.
	Applet bool
}

// wrapper is the option grammar of a program that runs another program.
type wrapper struct {
	flags    string   // letters without a value
	valued   string   // letters with one
	attached string   // letters whose value, if any, is attached
	long     []string // long options with a value that may be the next word
	skip     int      // operands before the payload
	assigns  bool     // NAME=value operands come first
	split    bool     // -S and --split-string hold more words
	numbers  bool     // -NUMBER is an option
	loose    bool     // unknown grammar: skip every argument that begins with a dash
}

const (
	// LoaderWrapper is the name of every dynamic loader, see [WrapperName].
	LoaderWrapper = "ld-linux"
	// MultiCallWrapper is the name of every multi-call program, see [WrapperName].
	MultiCallWrapper = "busybox"
	// maxPayloads is the maximum nesting of wrappers. Deeper payloads count as
	// not followed.
	maxPayloads = 16
)

// wrappers is the built-in table. The loader and busybox have separate parsers.
var wrappers = sync.OnceValue(func() map[string]*wrapper {
	return map[string]*wrapper{
		"env":     {flags: "i0v", valued: "uCa", long: []string{"--unset", "--chdir", "--argv0"}, assigns: true, split: true},
		"nice":    {valued: "n", long: []string{"--adjustment"}, numbers: true},
		"nohup":   {},
		"time":    {flags: "apqvV", valued: "fo", long: []string{"--format", "--output"}},
		"timeout": {flags: "fpv", valued: "ks", long: []string{"--kill-after", "--signal"}, skip: 1},
		"xargs": {
			flags:    "0oprtx",
			valued:   "adEILnPs",
			attached: "eil",
			long:     []string{"--arg-file", "--delimiter", "--max-args", "--max-chars", "--max-procs", "--process-slot-var"},
		},
		"sudo": {
			flags:  "ABbEeHiKklNnPSsVv",
			valued: "CcDghpRrTtUu",
			long: []string{
				"--close-from",
				"--chdir",
				"--group",
				"--host",
				"--prompt",
				"--chroot",
				"--role",
				"--type",
				"--command-timeout",
				"--other-user",
				"--user",
				"--login-class",
			},
			assigns: true,
		},
		"doas":           {flags: "Lns", valued: "aCu"},
		"setsid":         {flags: "cfw"},
		"stdbuf":         {valued: "ioe", long: []string{"--input", "--output", "--error"}},
		MultiCallWrapper: nil,
		LoaderWrapper:    nil,
	}
})

var anyWrapper = &wrapper{loose: true, assigns: true}

// WrapperName returns the name of a program in the table of wrappers. It is the
// base name, or the name of the program's family: [LoaderWrapper] or
// [MultiCallWrapper].
func WrapperName(program string) string {
	name := base(program)
	switch {
	case name == "":
		return ""
	case isLoader(name):
		return LoaderWrapper
	case multiCall(name):
		return MultiCallWrapper
	}
	return name
}

// isLoader reports whether a base name is that of a dynamic loader:
// ld-linux-x86-64.so.2, ld-musl-aarch64.so.1, ld-2.31.so, ld64.so.2, ld.so.
func isLoader(name string) bool {
	if !strings.HasPrefix(name, "ld") || !strings.Contains(name, ".so") {
		return false
	}
	return strings.HasPrefix(name, "ld-") || strings.HasPrefix(name, "ld.so") || strings.HasPrefix(name, "ld64.so") ||
		strings.HasPrefix(name, "ld32.so")
}

var errNotFollowed = errors.New("its arguments cannot be followed to the program they run")

// LoaderPayload returns the program that a dynamic loader runs with these
// arguments. Program is empty if it runs none. Argv[0] follows the option
// --argv0. The error says why the arguments cannot be parsed. See ld.so(8).
func LoaderPayload(argv []string) (Payload, error) { return unwrap(LoaderWrapper, argv) }

// payloads returns the commands in the arguments of a wrapper, outermost first.
// For "nice env -i kill 1" these are "env -i kill 1" and "kill 1". known
// reports whether a name is that of a wrapper. The error says why the arguments
// cannot be parsed.
func payloads(name string, argv []string, known func(string) bool) ([]Payload, error) {
	var out []Payload
	inProcess := false
	for known(name) {
		if len(out) == maxPayloads {
			return out, errNotFollowed
		}
		next, err := unwrap(name, argv)
		if err != nil {
			return out, err
		}
		if next.Program == "" {
			return out, nil
		}
		// The payload of a multi-call program may be an applet too.
		next.Applet = next.Applet || inProcess && !strings.Contains(next.Program, "/")
		next.InProcess = next.InProcess || next.Applet
		inProcess = next.Applet
		out = append(out, next)
		argv, name = next.Argv, WrapperName(next.Program)
	}
	return out, nil
}

// unwrap returns the command that one wrapper runs. Program is empty if there
// is none.
func unwrap(name string, argv []string) (Payload, error) {
	if len(argv) < 2 {
		return Payload{}, nil
	}
	switch name {
	case MultiCallWrapper:
		return unwrapBox(argv)
	case LoaderWrapper:
		return unwrapLoader(argv[1:])
	}
	w := wrappers()[name]
	if w == nil {
		w = anyWrapper
	}
	rest, err := w.payload(argv[1:])
	if err != nil || len(rest) == 0 {
		return Payload{}, err
	}
	return Payload{Program: rest[0], Argv: rest}, nil
}

// coreutilsProgram is the prefix of the option that selects the applet of the
// coreutils program. The option overrides the called name.
const coreutilsProgram = "--coreutils-prog"

// unwrapBox parses busybox APPLET ARGS and coreutils --coreutils-prog=APPLET
// ARGS.
func unwrapBox(argv []string) (Payload, error) {
	if option, name, ok := strings.Cut(argv[1], "="); ok && strings.HasPrefix(option, coreutilsProgram) {
		return Payload{Program: base(name), Argv: append([]string{base(name)}, argv[2:]...), InProcess: true, Applet: true}, nil
	}
	if strings.HasPrefix(argv[1], "-") && argv[1] != "-" {
		return Payload{}, nil // --list, --install, --help
	}
	return Payload{Program: base(argv[1]), Argv: argv[1:], InProcess: true, Applet: true}, nil
}

// loaderValued are the loader's options with a value. See ld.so(8).
var loaderValued = []string{
	"--library-path",
	"--preload",
	"--audit",
	"--inhibit-rpath",
	"--argv0",
	"--glibc-hwcaps-prepend",
	"--glibc-hwcaps-mask",
}

var loaderFlags = []string{"--list", "--verify", "--inhibit-cache", "--list-tunables", "--list-diagnostics", "--help", "--version"}

// unwrapLoader parses [OPTIONS] PROGRAM ARGS of the dynamic loader.
func unwrapLoader(args []string) (Payload, error) {
	argv0, replaced := "", false
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		word := args[0]
		args = args[1:]
		if word == "--" {
			break
		}
		name, value, attached := strings.Cut(word, "=")
		switch {
		case contains(loaderFlags, word):
			continue
		case !contains(loaderValued, name):
			return Payload{}, errNotFollowed
		case !attached && len(args) == 0:
			return Payload{}, nil
		case !attached:
			value, args = args[0], args[1:]
		}
		if name == "--argv0" {
			argv0, replaced = value, true
		}
	}
	if len(args) == 0 {
		return Payload{}, nil
	}
	p := Payload{Program: args[0], Argv: args, InProcess: true}
	if replaced {
		p.Argv = append([]string{argv0}, args[1:]...)
	}
	return p, nil
}

// payload returns the arguments from the payload's name on.
func (w *wrapper) payload(args []string) ([]string, error) {
	skip := w.skip
	for len(args) > 0 {
		word := args[0]
		switch {
		case word == "--":
			return w.afterOptions(args[1:], skip), nil
		case word == "-" && w.split: // env -
			args = args[1:]
		case len(word) < 2 || word[0] != '-':
			return w.afterOptions(args, skip), nil
		case w.loose:
			args = args[1:]
		default:
			rest, err := w.option(args)
			if err != nil {
				return nil, err
			}
			args = rest
		}
	}
	return nil, nil
}

// afterOptions removes assignments and the wrapper's own operands.
func (w *wrapper) afterOptions(args []string, skip int) []string {
	for w.assigns && len(args) > 0 && strings.Contains(args[0], "=") {
		args = args[1:]
	}
	if skip > len(args) {
		return nil
	}
	return args[skip:]
}

// option removes the first option of args with its value.
func (w *wrapper) option(args []string) ([]string, error) {
	word, rest := args[0], args[1:]
	if strings.HasPrefix(word, "--") {
		name, value, attached := strings.Cut(word, "=")
		if w.split && abbreviates(name, "--split-string") {
			return splitInto(value, attached, rest)
		}
		if !attached && w.takesNext(name) {
			return drop(rest), nil
		}
		return rest, nil
	}
	if w.numbers && word[1] >= '0' && word[1] <= '9' {
		return rest, nil
	}
	for i := 1; i < len(word); i++ {
		c := word[i]
		switch {
		case w.split && c == 'S':
			return splitInto(word[i+1:], i+1 < len(word), rest)
		case strings.IndexByte(w.attached, c) >= 0:
			return rest, nil
		case strings.IndexByte(w.valued, c) >= 0 && i+1 < len(word):
			return rest, nil
		case strings.IndexByte(w.valued, c) >= 0:
			return drop(rest), nil
		case strings.IndexByte(w.flags, c) < 0:
			return nil, errNotFollowed
		}
	}
	return rest, nil
}

// takesNext reports whether a long option, or one it abbreviates, takes the
// next word as its value.
func (w *wrapper) takesNext(name string) bool {
	for _, l := range w.long {
		if abbreviates(name, l) {
			return true
		}
	}
	return false
}

// abbreviates reports whether name is short for a long option, or the option.
func abbreviates(name, option string) bool { return len(name) > 2 && strings.HasPrefix(option, name) }

func drop(args []string) []string {
	if len(args) == 0 {
		return nil
	}
	return args[1:]
}

// splitInto inserts the words of an env -S text before the other arguments.
func splitInto(text string, attached bool, rest []string) ([]string, error) {
	if !attached {
		if len(rest) == 0 {
			return nil, nil
		}
		text, rest = rest[0], rest[1:]
	}
	words, err := splitString(text)
	if err != nil {
		return nil, err
	}
	return append(words, rest...), nil
}

// splitString splits a text as env -S does, with quotes, escapes and comments.
// It returns an error for a variable, because its value is not known here. See
// env(1).
func splitString(text string) ([]string, error) {
	var words []string
	var word strings.Builder
	open := false
	quote := byte(0)
	flush := func() {
		if open {
			words = append(words, word.String())
			word.Reset()
			open = false
		}
	}
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '\\' && i+1 < len(text):
			i++
			if stop := splitEscape(text[i], quote, &word, flush); stop {
				flush()
				return words, nil
			}
			open = open || text[i] != '_' || quote != 0
		case c == '\\':
			return nil, errNotFollowed
		case quote != '\'' && c == '$':
			return nil, errNotFollowed
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote, open = c, true
		case quote == 0 && (c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\v' || c == '\f'):
			flush()
		case quote == 0 && c == '#' && !open:
			return words, nil
		default:
			word.WriteByte(c)
			open = true
		}
	}
	if quote != 0 {
		return nil, errNotFollowed
	}
	flush()
	return words, nil
}

// splitEscape handles the character after a backslash. It returns true if the
// escape ends the text.
func splitEscape(c, quote byte, word *strings.Builder, flush func()) bool {
	if quote == '\'' {
		if c != '\\' && c != '\'' {
			word.WriteByte('\\')
		}
		word.WriteByte(c)
		return false
	}
	switch c {
	case 'c':
		return quote == 0
	case '_':
		if quote == 0 {
			flush()
			return false
		}
		c = ' '
	case 'n':
		c = '\n'
	case 't':
		c = '\t'
	case 'r':
		c = '\r'
	case 'v':
		c = '\v'
	case 'f':
		c = '\f'
	}
	word.WriteByte(c)
	return false
}
