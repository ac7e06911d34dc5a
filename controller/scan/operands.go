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
// cannot be parsed is returned as it is, and so is one that redefines a name. One
// that may run what it stored or printed loses its comments only.
func withoutData(command string) string {
	if len(command) > maxParsed || nested(command) > maxNested {
		return command
	}
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash), syntax.KeepComments(true)).Parse(strings.NewReader(command), "")
	if err != nil || otherwiseRead(command) {
		return command
	}
	m := mask{text: []byte(command)}
	switch trustOf(file) {
	case trustNothing:
		return command
	case trustComments:
		m.comments(file)
	case trustData:
		m.node(file, false)
	}
	return string(m.text)
}

// maxNested bounds the nesting of a command that is parsed.
const maxNested = 200

// nested is an upper bound of the nesting of a command.
func nested(command string) int {
	return strings.Count(command, "(") + strings.Count(command, "{") + strings.Count(command, "`") + strings.Count(command, "if") +
		strings.Count(command, "do") + strings.Count(command, "case")
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

// comments masks the comments below a node.
func (m mask) comments(root syntax.Node) {
	syntax.Walk(root, func(n syntax.Node) bool {
		if c, ok := n.(*syntax.Comment); ok {
			m.blank(c.Pos(), c.End())
		}
		return true
	})
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
				if !several(w.word) {
					m.word(w.word, w.skip)
				}
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
	args, ok := command(args)
	if !ok || len(args) == 0 {
		return nil
	}
	name := path.Base(args[0].Lit())
	switch {
	case searches[name] != "":
		return pattern(args[1:], searches[name])
	case name == "git":
		return gitData(args[1:])
	case name == "gh" || name == "glab":
		if len(args) < 2 || !slices.Contains([]string{"pr", "issue", "release", "mr"}, args[1].Lit()) {
			return nil
		}
		return posts.values(args[1:])
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

// flags are the short options of a program: alone, and with a value in the same
// word or the next.
type flags struct{ alone, valued string }

// carriers are programs that start the command after their options.
var carriers = map[string]flags{
	"sudo": {"nEHkSb", "ugpCDhRT"}, "time": {"apv", "fo"}, "nice": {"", "n"}, "command": {"p", ""}, "nohup": {}, "env": {"i0", "uC"},
	"xargs": {"0rtx", "EIJLPnsda"},
}

// command skips the programs before a command that only start it. It reports false
// if it cannot tell which command they start.
func command(args []*syntax.Word) ([]*syntax.Word, bool) {
	for len(args) > 0 {
		name := path.Base(args[0].Lit())
		known, carries := carriers[name]
		switch {
		case name == "find":
			return found(args)
		case !carries:
			return args, true
		}
		for args = args[1:]; len(args) > 0; args = args[1:] {
			word := args[0].Lit()
			if variable, _, assigns := strings.Cut(word, "="); name == "env" && assigns && !strings.HasPrefix(word, "-") {
				if isSpecial(variable) {
					return nil, false
				}
				continue
			}
			if !strings.HasPrefix(beginning(args[0]), "-") {
				break
			}
			at := strings.IndexAny(word, known.valued)
			switch {
			case len(word) > 1 && strings.Trim(word[1:], known.alone) == "":
			case at < 1 || strings.Trim(word[1:at], known.alone) != "":
				return nil, false
			case at == len(word)-1 && len(args) > 1:
				args = args[1:]
			}
		}
	}
	return nil, true
}

// found is the command that find starts. A find that starts none is itself the
// command. It reports false if there may be several commands.
func found(args []*syntax.Word) ([]*syntax.Word, bool) {
	at, end := -1, -1
	for i, w := range args {
		text, ok := static(w)
		switch {
		case slices.Contains([]string{"-exec", "-execdir", "-ok", "-okdir"}, text):
			if at >= 0 {
				return nil, false
			}
			at = i
		case at >= 0 && end < 0 && (text == ";" || text == "+"):
			end = i
		case !ok && at >= 0, at < 0 && several(w):
			return nil, false // an action may begin or end here
		}
	}
	if at < 0 {
		return args, true
	}
	if end < 0 || end+1 < len(args) || strings.HasPrefix(beginning(args[at-1]), "-") && findValue()[args[at-1].Lit()] {
		return nil, false
	}
	return command(args[at+1 : end])
}

// findValue are tests of find that take the next word.
var findValue = set(`-name -iname -path -ipath -wholename -regex -iregex -lname -ilname -newer -user -group -fstype -samefile -printf -type
	-perm -size`)

// searchFlags are long options of searches without a value.
var searchFlags = set(`recursive dereference-recursive ignore-case no-ignore-case smart-case word-regexp line-regexp line-number no-line-number
	files-with-matches files-without-match fixed-strings extended-regexp perl-regexp basic-regexp invert-match count count-matches quiet silent
	no-messages only-matching with-filename no-filename hidden no-ignore no-ignore-vcs text null null-data pcre2 multiline follow cached untracked
	all-match no-index json vimgrep stats heading no-heading break trim color colour`)

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
				given = given || strings.HasPrefix(option, "fi") && !searchFlags()[option] || !joined && !searchFlags()[option]
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

// options are the options of a program whose values are data.
type options struct {
	data     string // short options with a value that is data
	separate string // with another value, in the same word or the next
	attached string // with a value in the same word only
	long     []string
	edits    bool // -e opens an editor, which may be any program
}

// posts are the options of gh and glab that take text for people.
var posts = options{data: "bmt", separate: "FBHalpRrTnDdoLiS", long: []string{"body", "title", "notes", "message", "description"}}

// values are the values of options. Short options may stand in a cluster.
func (o options) values(args []*syntax.Word) []dataWord {
	var out []dataWord
	for i := 0; i < len(args); i++ {
		word := beginning(args[i])
		if word == "--" {
			return out
		}
		option, _, joined := strings.Cut(strings.TrimPrefix(word, "--"), "=")
		long, skip := strings.HasPrefix(word, "--"), 0
		switch {
		case o.edits && long && beginsOne(option, []string{"edit"}):
			return nil
		case long:
			if len(option) <= 2 || !beginsOne(option, o.long) {
				continue
			}
			if joined {
				skip = len(option) + 3
			}
		case len(word) < 2 || word[0] != '-':
			continue
		default:
			at := 1 + strings.IndexAny(word[1:], o.data+o.separate+o.attached)
			alone := word[1:]
			if at > 0 {
				alone = word[1:at]
			}
			if o.edits && strings.Contains(alone, "e") {
				return nil
			}
			last := at == len(word)-1 && len(args[i].Parts) == 1
			if at == 0 || !strings.Contains(o.data, word[at:at+1]) {
				if at > 0 && last && strings.Contains(o.separate, word[at:at+1]) {
					i++
				}
				continue
			}
			if !last {
				skip = at + 1
			}
		}
		if skip == 0 {
			if i++; i == len(args) {
				break
			}
		}
		out = append(out, dataWord{args[i], skip})
	}
	return out
}

// beginsOne reports whether an option is the beginning of one of some names.
func beginsOne(option string, names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, option) })
}

// gitText are the options of git's commands that take messages and patterns.
var gitText = map[string]options{
	"commit": {data: "m", separate: "FCct", attached: "Su", long: []string{"message"}, edits: true},
	"tag":    {data: "m", separate: "uF", attached: "n", long: []string{"message"}, edits: true},
	"merge":  {data: "m", separate: "FsX", attached: "S", long: []string{"message"}, edits: true},
	"notes":  {data: "m", separate: "FCc", long: []string{"message"}, edits: true},
	"stash":  {data: "m", long: []string{"message"}},
}

// gitPatterns are the options of git's commands that search the history.
var gitPatterns = options{data: "SG", separate: "OLnl", attached: "CMBUX", long: []string{"grep", "author", "committer"}}

// gitData are the words of a git command that are data: messages and patterns. A
// setting on the command line may name a program, so then there are none.
func gitData(args []*syntax.Word) []dataWord {
	for len(args) > 0 && strings.HasPrefix(beginning(args[0]), "-") {
		word := args[0].Lit()
		option, _, joined := strings.Cut(word, "=")
		switch {
		case word == "--no-pager" || word == "-P" || joined && (option == "--git-dir" || option == "--work-tree"):
		case word == "-C" || word == "--git-dir" || word == "--work-tree",
			word == "-c" && len(args) > 1 && strings.HasPrefix(beginning(args[1]), "user."):
			args = args[1:]
		default:
			return nil
		}
		if len(args) > 0 {
			args = args[1:]
		}
	}
	if len(args) == 0 {
		return nil
	}
	name := args[0].Lit()
	if o, ok := gitText[name]; ok {
		return o.values(args[1:])
	}
	switch name {
	case "log", "show", "shortlog", "rev-list", "diff":
		return gitPatterns.values(args[1:])
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
