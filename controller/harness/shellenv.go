package harness

import (
	"errors"
	"fmt"
	"sort"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"agentsh/policy/env"
)

// maxShellFile is the largest .env file that a shell reads, in bytes.
const maxShellFile = 64 << 10

// hostPrefix begins the names under which a shell gets variables of the host.
const hostPrefix = "agentsh_host_"

// shellFile is a .env file that is more than a list of variables. A shell in the
// sandbox reads it.
type shellFile struct {
	name  string // as shown
	data  []byte
	shell string // sh or bash
	file  *syntax.File
	sets  map[string]int // variables that it sets, with their lines
	after map[string]int // offsets at which they are set
	edits []edit
}

// edit replaces a part of a file.
type edit struct {
	from, to int
	text     string
}

// parseShell parses a .env file as a shell script. It returns nil and the reason
// if the file is none.
func parseShell(name string, data []byte) (*shellFile, error) {
	if len(data) > maxShellFile {
		return nil, fmt.Errorf("a file with shell commands has at most %d bytes", maxShellFile)
	}
	f := &shellFile{name: name, data: data, shell: "sh", sets: map[string]int{}, after: map[string]int{}}
	var err error
	if f.file, err = syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(string(data)), name); err != nil {
		return nil, err
	}
	for _, s := range f.file.Stmts {
		if call, ok := s.Cmd.(*syntax.CallExpr); ok && misspelt(call) {
			return nil, errors.New("no shell command either")
		}
	}
	syntax.Walk(f.file, func(n syntax.Node) bool {
		f.collect(n)
		if bashOnly(n) {
			f.shell = "bash"
		}
		return true
	})
	return f, nil
}

// misspelt reports whether a command looks like an assignment with a wrong name
// or with blanks around its equals sign.
func misspelt(call *syntax.CallExpr) bool {
	if len(call.Assigns) > 0 && len(call.Args) > 0 {
		return true // NAME=two words
	}
	for i, w := range call.Args {
		if i < 2 && strings.Contains(w.Lit(), "=") {
			return call.Args[0].Lit() != "export" && call.Args[0].Lit() != "readonly" && call.Args[0].Lit() != "["
		}
	}
	return false
}

// bashOnly reports whether only bash knows a construct.
func bashOnly(n syntax.Node) bool {
	switch n := n.(type) {
	case *syntax.TestClause, *syntax.ArithmCmd, *syntax.ProcSubst, *syntax.ArrayExpr, *syntax.CoprocClause, *syntax.ExtGlob:
		return true
	case *syntax.FuncDecl:
		return n.RsrvWord
	case *syntax.SglQuoted:
		return n.Dollar
	case *syntax.DeclClause:
		return n.Variant.Value == "declare" || n.Variant.Value == "typeset" || n.Variant.Value == "nameref"
	case *syntax.ParamExp:
		return n.Excl || n.Slice != nil || n.Repl != nil
	case *syntax.CallExpr:
		return len(n.Args) > 0 && n.Args[0].Lit() == "source"
	}
	return false
}

// collect notes the variables that a node sets.
func (f *shellFile) collect(n syntax.Node) {
	set := func(name *syntax.Lit) {
		if name != nil && f.sets[name.Value] == 0 {
			f.sets[name.Value], f.after[name.Value] = int(name.Pos().Line()), int(n.End().Offset())
		}
	}
	switch n := n.(type) {
	case *syntax.Assign:
		if !n.Naked {
			set(n.Name)
		}
	case *syntax.WordIter:
		set(n.Name)
	case *syntax.CallExpr:
		if len(n.Args) == 0 || n.Args[0].Lit() != "read" {
			return
		}
		for _, w := range n.Args[1:] {
			if lit := w.Lit(); identRE().MatchString(lit) {
				set(&syntax.Lit{ValuePos: w.Pos(), Value: lit})
			}
		}
	}
}

// shellProblems makes problems of an error of parseShell. It returns false if
// the file is no shell script at all.
func shellProblems(name string, err error) (ps Problems, script bool) {
	var parse syntax.ParseError
	var lang syntax.LangError
	switch {
	case errors.As(err, &parse):
		ps.errorf(Origin{File: name, Line: int(parse.Pos.Line()), Column: int(parse.Pos.Col())}, RuleSyntax,
			"neither NAME=value nor shell: %s", parse.Text)
	case errors.As(err, &lang):
		at := Origin{File: name, Line: int(lang.Pos.Line()), Column: int(lang.Pos.Col())}
		ps.errorf(at, RuleSyntax, "neither NAME=value nor shell: %v", lang)
	default:
		return nil, false
	}
	return ps, true
}

// looksLikeShell reports whether a file has something that only shells know: a
// command that is more than an assignment.
func looksLikeShell(data []byte) bool {
	for _, line := range strings.Split(string(data), "\n") {
		word, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch strings.TrimSuffix(word, ";") {
		case "if", "then", "else", "elif", "fi", "for", "while", "until", "case", "esac", "do", "done", "[", "test", ".", "source", "unset",
			"set", "eval", "{", "}":
			return true
		}
		if strings.Contains(line, "&&") || strings.Contains(line, "||") || strings.Contains(line, "$(") || strings.Contains(line, "${") {
			return true
		}
	}
	return false
}

// check reports names that a .env file cannot set, and returns those that it
// sets, sorted.
func (f *shellFile) check(ps *Problems) []string {
	for name := range f.sets {
		if why := reservedInSandbox(name); why != "" && !contains(runNames, name) {
			ps.errorf(Origin{File: f.name, Line: f.sets[name], Column: 1}, RuleReserved, "%s %s", name, why)
		}
	}
	names := sortedKeys(f.sets)
	sort.SliceStable(names, func(i, j int) bool { return f.sets[names[i]] < f.sets[names[j]] })
	return names
}

// expand replaces the references to variables of the host. The shell gets their
// values as variables of its own, so no value can become syntax.
func (f *shellFile) expand(e *expander) []env.Var {
	values := map[string]string{}
	f.edits = nil
	use := func(name string, at syntax.Pos, hasDefault bool) bool {
		v, ok := e.lookup(name)
		switch {
		case ok:
			values[hostPrefix+name] = v
		case f.sets[name] != 0 && int(at.Offset()) >= f.after[name]:
			return false // the file's own
		case f.sets[name] == 0 && (e.inside[name] || contains(runNames, name)):
			return false
		case !hasDefault:
			e.unset[name] = append(e.unset[name], Origin{File: f.name, Line: int(at.Line()), Column: 1})
		}
		return true
	}
	syntax.Walk(f.file, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.ParamExp:
			if n.Param != nil && identRE().MatchString(n.Param.Value) && use(n.Param.Value, n.Pos(), n.Exp != nil) {
				from := int(n.Param.Pos().Offset())
				f.edits = append(f.edits, edit{from, from, hostPrefix})
			}
		case *syntax.SglQuoted:
			if !n.Dollar {
				f.quoted(n, use)
			}
		}
		return true
	})
	var vars []env.Var
	for _, name := range sortedKeys(values) {
		vars = append(vars, env.Var{Name: name, Value: values[name]})
	}
	return vars
}

// quoted replaces references in single quotes, which a shell does not expand.
func (f *shellFile) quoted(n *syntax.SglQuoted, use func(string, syntax.Pos, bool) bool) {
	segs, _, err := segments(n.Value)
	if err != nil {
		return // not references
	}
	var out strings.Builder
	out.WriteByte('\'')
	changed := false
	for _, s := range segs {
		if s.name != "" && use(s.name, n.Pos(), s.hasDef) {
			def := ""
			if s.hasDef {
				def = ":-" + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "`", "\\`", "}", `\}`).Replace(s.def)
			}
			out.WriteString(`'"${` + hostPrefix + s.name + def + `}"'`)
			changed = true
			continue
		}
		out.WriteString(n.Value[s.from:s.to])
	}
	if changed {
		out.WriteByte('\'')
		f.edits = append(f.edits, edit{int(n.Pos().Offset()), int(n.End().Offset()), out.String()})
	}
}

// text is the file with its edits.
func (f *shellFile) text() string {
	sort.SliceStable(f.edits, func(i, j int) bool { return f.edits[i].from < f.edits[j].from })
	var out strings.Builder
	at := 0
	for _, e := range f.edits {
		out.WriteString(string(f.data[at:e.from]) + e.text)
		at = e.to
	}
	out.Write(f.data[at:])
	return out.String()
}

// Script is a .env file that a shell reads in the sandbox, before the agent
// starts.
type Script struct {
	Name  string    // of the file on the host, as shown
	Shell string    // program: sh or bash
	Text  string    // the commands
	Vars  []env.Var // variables of the host that the commands read, not exported
}

// shellEnv makes a script of a .env file. It reports false if the file is none.
func (e *expander) shellEnv(name string, data []byte, expand bool) (*Script, []string, bool) {
	f, err := parseShell(name, data)
	if err != nil {
		ps, script := shellProblems(name, err)
		if script && looksLikeShell(data) {
			e.ps = append(e.ps, ps...)
			return nil, nil, true
		}
		return nil, nil, false
	}
	s := &Script{Name: name, Shell: f.shell}
	names := f.check(&e.ps)
	if expand {
		s.Vars = f.expand(e)
	}
	s.Text = f.text()
	return s, names, true
}

// NotForSandbox is the reason why a variable cannot be delivered into the
// sandbox, or "". byRun reports that the run sets it.
func NotForSandbox(name string) (why string, byRun bool) {
	return reservedInSandbox(name), contains(runNames, name)
}
