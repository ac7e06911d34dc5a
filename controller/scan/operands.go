package scan

import (
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// maxParsed is the longest command that is parsed, in bytes. A longer one is
// judged with all its text.
const maxParsed = 64 << 10

// withoutData returns a command in which spaces replace the text that no
// program runs: comments, messages of commits, patterns of searches, and what
// echo prints to the terminal. Substitutions in such text stay. A command that
// cannot be parsed is returned as it is, and so is one that redefines a name.
func withoutData(command string) string {
	if len(command) > maxParsed || nested(command) > maxNested {
		return command
	}
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash), syntax.KeepComments(true)).Parse(strings.NewReader(command), "")
	if err != nil || redefines(file) {
		return command
	}
	m := mask{text: []byte(command)}
	m.node(file, false)
	return string(m.text)
}

// maxNested bounds the nesting of a command that is parsed.
const maxNested = 200

// nested is an upper bound of the nesting of a command.
func nested(command string) int {
	return strings.Count(command, "(") + strings.Count(command, "{") + strings.Count(command, "`") + strings.Count(command, "if") +
		strings.Count(command, "do") + strings.Count(command, "case")
}

// redefines reports whether a command can give a name another meaning.
func redefines(file *syntax.File) bool {
	found := false
	syntax.Walk(file, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.FuncDecl:
			found = true
		case *syntax.Stmt:
			// exec with a redirection changes where all that follows prints.
			if call, ok := n.Cmd.(*syntax.CallExpr); ok && len(call.Args) > 0 {
				name := path.Base(call.Args[0].Lit())
				found = found || name == "alias" || name == "enable" || name == "exec" && len(n.Redirs) > 0
			}
		}
		return !found
	})
	return found
}

// mask replaces parts of a command by spaces.
type mask struct{ text []byte }

func (m mask) blank(from, to syntax.Pos) {
	for i := from.Offset(); i < min(to.Offset(), uint(len(m.text))); i++ {
		if m.text[i] != '\n' {
			m.text[i] = ' '
		}
	}
}

// node masks the data below a node. read reports whether something reads the
// output of the commands.
func (m mask) node(root syntax.Node, read bool) {
	if s, ok := root.(*syntax.Stmt); ok && writes(s) {
		read = true
	}
	syntax.Walk(root, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.Comment:
			m.blank(n.Pos(), n.End())
		case *syntax.BinaryCmd:
			if n.Op == syntax.Pipe || n.Op == syntax.PipeAll {
				m.node(n.X, true)
				m.node(n.Y, read)
				return false
			}
		case *syntax.CmdSubst, *syntax.ProcSubst, *syntax.CoprocClause:
			if n != root && !read {
				m.node(n, true)
				return false
			}
		case *syntax.Stmt:
			if n != root && !read && writes(n) {
				m.node(n, true)
				return false
			}
		case *syntax.CallExpr:
			for _, w := range dataWords(n.Args, read) {
				m.word(w.word, w.skip)
			}
		}
		return true
	})
}

// writes reports whether a command has a redirection other than >&1 and >&2.
func writes(s *syntax.Stmt) bool {
	return slices.ContainsFunc(s.Redirs, func(r *syntax.Redirect) bool {
		return r.Op != syntax.DplOut || r.Word.Lit() != "1" && r.Word.Lit() != "2"
	})
}

// word masks the literal parts of a word after its first skip bytes.
func (m mask) word(w *syntax.Word, skip int) {
	for _, part := range w.Parts {
		m.part(part, &skip)
	}
}

func (m mask) part(part syntax.WordPart, skip *int) {
	switch p := part.(type) {
	case *syntax.Lit:
		n := min(*skip, len(p.Value))
		*skip -= n
		m.blank(syntax.NewPos(p.Pos().Offset()+uint(n), 0, 0), p.End())
	case *syntax.SglQuoted:
		*skip = 0
		m.blank(p.Pos(), p.End())
	case *syntax.DblQuoted:
		*skip = 0
		for _, inner := range p.Parts {
			m.part(inner, skip)
		}
	case *syntax.CmdSubst:
		m.message(p)
	}
}

// message masks the text in $(cat <<EOF ... EOF), which stands for itself.
func (m mask) message(s *syntax.CmdSubst) {
	if len(s.Stmts) != 1 || len(s.Stmts[0].Redirs) != 1 {
		return
	}
	call, ok := s.Stmts[0].Cmd.(*syntax.CallExpr)
	if !ok || len(call.Args) != 1 || call.Args[0].Lit() != "cat" {
		return
	}
	if text := s.Stmts[0].Redirs[0].Hdoc; text != nil {
		m.word(text, 0)
	}
}

// dataWord is a word of a command that no program runs, after skip bytes.
type dataWord struct {
	word *syntax.Word
	skip int
}

// searches are programs whose first operand is a pattern, with the short
// options that take a value.
var searches = map[string]string{
	"grep": "ABCDdefm", "egrep": "ABCDdefm", "fgrep": "ABCDdefm", "zgrep": "ABCDdefm", "rg": "ABCEMTdefgjmrt",
}

// dataWords are the words of a command that are data to its program.
func dataWords(args []*syntax.Word, read bool) []dataWord {
	args = command(args)
	if len(args) == 0 {
		return nil
	}
	name := path.Base(args[0].Lit())
	switch {
	case searches[name] != "":
		return pattern(args[1:], searches[name])
	case name == "git":
		return gitData(args[1:])
	case name == "gh" || name == "glab":
		return values(args[1:], "bmt", "body", "title", "notes", "message", "description")
	case (name == "echo" || name == "printf") && !read:
		var out []dataWord
		if len(args) > 1 && strings.HasPrefix(beginning(args[1]), "-v") {
			return nil // printf -v sets a variable
		}
		for _, w := range args[1:] {
			out = append(out, dataWord{word: w})
		}
		return out
	}
	return nil
}

// carriers are programs that start the command after their options, with the
// short options that take a value.
var carriers = map[string]string{
	"sudo": "ugpCDhRT", "time": "fo", "nice": "n", "command": "", "nohup": "", "env": "uCS", "xargs": "EIJLPnsda",
}

// command skips the programs before a command that only start it.
func command(args []*syntax.Word) []*syntax.Word {
	for len(args) > 0 {
		name := path.Base(args[0].Lit())
		with, carries := carriers[name]
		if name == "find" {
			i := slices.IndexFunc(args, func(w *syntax.Word) bool { return slices.Contains([]string{"-exec", "-execdir", "-ok"}, w.Lit()) })
			if i < 0 {
				return args
			}
			args = args[i+1:]
			continue
		}
		if !carries {
			return args
		}
		for args = args[1:]; len(args) > 0; args = args[1:] {
			word := args[0].Lit()
			assigns := name == "env" && strings.Contains(word, "=")
			if !assigns && !strings.HasPrefix(word, "-") {
				break
			}
			if len(word) == 2 && strings.Contains(with, word[1:]) && len(args) > 1 {
				args = args[1:]
			}
		}
	}
	return args
}

// pattern is the pattern of a search. with are the short options with a value.
func pattern(args []*syntax.Word, with string) []dataWord {
	var out []dataWord
	var operand *syntax.Word
	given := false // by an option
	for i := 0; i < len(args); i++ {
		word := beginning(args[i])
		if word == "--" {
			if operand == nil && i+1 < len(args) {
				operand = args[i+1]
			}
			break
		}
		switch {
		case strings.HasPrefix(word, "--"):
			option, _, joined := strings.Cut(word[2:], "=")
			if option == "" || option != "regexp"[:min(len(option), len("regexp"))] {
				given = given || strings.HasPrefix(option, "fi")
				continue
			}
			given = true
			if joined {
				out = append(out, dataWord{args[i], len(option) + 3})
			} else if i++; i < len(args) {
				out = append(out, dataWord{word: args[i]})
			}
		case len(word) > 1 && word[0] == '-':
			at := 1 + strings.IndexAny(word[1:], with)
			if at == 0 {
				continue
			}
			isPattern := word[at] == 'e'
			given = given || isPattern || word[at] == 'f'
			value, skip := args[i], at+1
			if at == len(word)-1 && len(args[i].Parts) == 1 {
				if i++; i == len(args) {
					break
				}
				value, skip = args[i], 0
			}
			if isPattern {
				out = append(out, dataWord{value, skip})
			}
		case operand == nil:
			operand = args[i]
		}
	}
	if operand != nil && !given {
		out = append(out, dataWord{word: operand})
	}
	return out
}

// beginning is the literal text with which a word begins, without quotes.
func beginning(w *syntax.Word) string {
	if len(w.Parts) > 0 {
		if l, ok := w.Parts[0].(*syntax.Lit); ok {
			return l.Value
		}
	}
	return ""
}

// values are the values of options. Short options may stand in a cluster.
func values(args []*syntax.Word, short string, long ...string) []dataWord {
	var out []dataWord
	for i := 0; i < len(args); i++ {
		word := beginning(args[i])
		value, skip := args[i], 0
		switch option, _, joined := strings.Cut(strings.TrimPrefix(word, "--"), "="); {
		case word == "--":
			return out
		case strings.HasPrefix(word, "--") && len(option) > 2 && beginsOne(option, long):
			if joined {
				skip = len(option) + 3
			}
		case !strings.HasPrefix(word, "--") && len(word) > 1 && word[0] == '-' && strings.ContainsAny(word, short):
			if at := strings.IndexAny(word, short); at < len(word)-1 || len(args[i].Parts) > 1 {
				skip = at + 1
			}
		default:
			continue
		}
		if skip == 0 {
			if i++; i == len(args) {
				break
			}
			value = args[i]
		}
		out = append(out, dataWord{value, skip})
	}
	return out
}

// beginsOne reports whether an option is the beginning of one of some names.
func beginsOne(option string, names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, option) })
}

// gitData are the words of a git command that are data: messages and patterns.
func gitData(args []*syntax.Word) []dataWord {
	for len(args) > 0 && strings.HasPrefix(beginning(args[0]), "-") {
		if word := args[0].Lit(); word == "-C" || word == "-c" || word == "--git-dir" || word == "--work-tree" {
			args = args[1:]
		}
		if len(args) > 0 {
			args = args[1:]
		}
	}
	if len(args) == 0 {
		return nil
	}
	switch args[0].Lit() {
	case "commit", "tag", "merge", "notes", "stash":
		return values(args[1:], "m", "message")
	case "log", "show", "shortlog", "rev-list", "diff", "blame":
		return values(args[1:], "SG", "grep", "author", "committer")
	case "grep":
		if slices.ContainsFunc(args, func(w *syntax.Word) bool {
			word := beginning(w)
			return strings.HasPrefix(word, "--o") || strings.HasPrefix(word, "-") && strings.Contains(word, "O")
		}) {
			return nil // it names a program
		}
		return pattern(args[1:], "ABCefm")
	}
	return nil
}
