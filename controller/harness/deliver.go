package harness

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"

	"agentsh/internal/layout"

	"agentsh/policy/env"
)

// File is one file to deliver into the sandbox.
type File struct {
	Dest   string      // absolute path in the sandbox
	Source string      // file of the host that is copied; empty: Data is the content
	Data   []byte      // content that was generated or expanded
	Mode   fs.FileMode // permission bits
	At     Origin      // position of the setting

	Generated bool    // made from env.sandbox
	Script    *Script // a .env file that a shell reads in the sandbox; nil: none
}

// IsEnv reports whether the file holds variables of the agent's commands.
func (f File) IsEnv() bool { return isEnvFile(f.Dest) }

// Files are the files that the harness delivers into the sandbox: the host
// files in their order, then generated.env unless env.sandbox is empty. A
// missing optional file is left out.
func (x *Expanded) Files() ([]File, Problems) {
	var files []File
	e := newExpander(x.lookup)
	e.inside = x.inside()
	for _, h := range x.Sources {
		f, ok := x.hostFile(e, h)
		if ok {
			files = append(files, f)
		}
	}
	ps := e.problems()
	sizes(&ps, x.Runner, x.Sandbox, e.files)
	if len(x.Sandbox) > 0 {
		data, err := x.generated()
		first := x.Sandbox[sortedKeys(x.Sandbox)[0]].At
		if err != nil {
			ps.errorf(first, RuleReserved, "env.sandbox: %v", err)
		}
		files = append(files, File{Dest: layout.GeneratedEnv, Data: data, Mode: 0o600, At: first, Generated: true})
	}
	if ps.HasErrors() {
		return nil, ps.Sorted()
	}
	return files, nil
}

// generated is the content of generated.env, sorted by name.
func (x *Expanded) generated() ([]byte, error) {
	vars := make([]env.Var, 0, len(x.Sandbox))
	for _, name := range sortedKeys(x.Sandbox) {
		vars = append(vars, env.Var{Name: name, Value: x.Sandbox[name].V})
	}
	return env.Format(vars)
}

// hostFile is one host file; not ok if it is left out or has a problem.
func (x *Expanded) hostFile(e *expander, h HostFile) (File, bool) {
	src := x.Path(h.Src)
	f := File{Dest: h.Dest.V, Source: src, At: h.Src.At}
	if src == "" {
		if !h.Optional.V {
			e.ps.errorf(h.Src.At, RulePath, "host_files.src is empty once expanded")
		}
		return f, false
	}
	info, err := os.Stat(src)
	switch {
	case errors.Is(err, fs.ErrNotExist) && h.Optional.V:
		return f, false
	case err != nil:
		e.ps.errorf(h.Src.At, RulePath, "host_files.src: %v", withoutPath(err))
		return f, false
	case !info.Mode().IsRegular():
		e.ps.errorf(h.Src.At, RulePath, "host_files.src is not a regular file")
		return f, false
	}
	f.Mode = info.Mode().Perm()
	if !isEnvFile(h.Dest.V) && !h.Expand.V {
		return f, true
	}
	data, err := ReadFile(src)
	if err != nil {
		e.ps.errorf(h.Src.At, RuleFile, "host_files.src: %v", err)
		return f, false
	}
	f.Source = ""
	name := shownName(src)
	if isEnvFile(h.Dest.V) {
		f.Data, f.Script = e.envFile(name, data, h)
	} else {
		f.Data = e.content(name, data)
	}
	return f, true
}

// shownName is an absolute name as problems show it: relative to the working
// directory if it is below it.
func shownName(name string) string {
	here, err := os.Getwd()
	if err != nil {
		return name
	}
	rel, err := filepath.Rel(here, name)
	if err != nil || !filepath.IsLocal(rel) {
		return name
	}
	return rel
}

// isEnvFile reports whether the supervisor reads the file as variables.
func isEnvFile(dest string) bool {
	return path.Dir(dest) == layout.EnvDir && path.Ext(dest) == ".env"
}

// content expands the content of a file.
func (e *expander) content(name string, data []byte) []byte {
	segs, bad, err := segments(string(data))
	if err != nil {
		e.ps.errorf(offsetIn(name, data, bad), RuleExpansion, "%v", err)
		return nil
	}
	var out strings.Builder
	for _, s := range segs {
		if s.name == "" {
			out.WriteString(s.literal)
			continue
		}
		v, ok := s.value(e.lookup)
		if !ok {
			e.unset[s.name] = append(e.unset[s.name], offsetIn(name, data, s.from))
		}
		out.WriteString(v)
	}
	return []byte(out.String())
}

func offsetIn(name string, data []byte, offset int) Origin {
	before := string(data[:offset])
	return Origin{
		File:   name,
		Line:   strings.Count(before, "\n") + 1,
		Column: utf8.RuneCountInString(before[strings.LastIndexByte(before, '\n')+1:]) + 1,
	}
}

// envFile reads a .env file, rejects reserved names, and writes the file again
// with its references replaced. References are replaced in the parsed values.
// So a value with quotes or line breaks cannot become syntax. A file with more
// than assignments becomes a script.
func (e *expander) envFile(name string, data []byte, h HostFile) ([]byte, *Script) {
	plain := newExpander(e.lookup)
	vars, ps := plain.envVars(name, data, h.Expand.V)
	if needsShell(ps) || e.setInside(plain) {
		if script, _, ok := e.shellEnv(name, data, h.Expand.V); ok {
			if script == nil {
				return nil, nil
			}
			return []byte(script.Text), script
		}
	}
	e.add(plain)
	e.ps = append(e.ps, ps...)
	for _, v := range vars {
		e.files[v.Name] = Text{v.Value, Origin{File: name, Line: lineOf(string(data), v.Name), Column: 1}}
	}
	out, err := env.Format(vars)
	if err != nil {
		e.ps.errorf(Origin{File: name, Line: 1, Column: 1}, RuleReserved, "%v", err)
	}
	return out, nil
}

// setInside reports whether a file refers to variables that only the sandbox
// has: those of other .env files and of the run.
func (e *expander) setInside(file *expander) bool {
	for name := range file.unset {
		if e.inside[name] || contains(runNames, name) {
			return true
		}
	}
	return false
}

// needsShell reports whether a .env file could not be read as assignments.
func needsShell(ps Problems) bool {
	for _, p := range ps {
		if p.Severity == Error && (p.Rule == RuleSyntax || p.Rule == RuleExpansion) {
			return true
		}
	}
	return false
}

// envVars are the variables of a .env file, expanded if expand is set.
func (e *expander) envVars(name string, data []byte, expand bool) ([]env.Var, Problems) {
	var ps Problems
	text, refs := string(data), []segment(nil)
	mark := unusedWord(text)
	if expand {
		segs, bad, err := segments(text)
		if err != nil {
			ps.errorf(offsetIn(name, data, bad), RuleExpansion, "%v", err)
			return nil, ps
		}
		text, refs = marked(segs, mark)
	}
	vars, err := env.Parse(name, []byte(text))
	if err != nil {
		return nil, append(ps, parseProblems(name, err)...)
	}
	kept := vars[:0]
	for _, v := range vars {
		at := Origin{File: name, Line: lineOf(text, v.Name), Column: 1}
		switch why := reservedInSandbox(v.Name); {
		case strings.Contains(v.Name, mark):
			ps.errorf(at, RuleName, "the name of a variable is not expanded")
			continue
		case contains(runNames, v.Name):
			ps.warnf(at, RuleNoEffect, "%s %s, which wins", v.Name, why)
			continue
		case why != "":
			ps.errorf(at, RuleReserved, "%s %s", v.Name, why)
		}
		v.Value = e.unmark(v.Value, mark, refs, at)
		kept = append(kept, v)
	}
	return kept, ps
}

// marked replaces each reference of a text by a mark that no quoting changes.
func marked(segs []segment, mark string) (string, []segment) {
	var out strings.Builder
	var refs []segment
	for _, s := range segs {
		if s.name == "" {
			out.WriteString(strings.ReplaceAll(s.literal, "$", mark+"d_"))
			continue
		}
		fmt.Fprintf(&out, "%s%d_", mark, len(refs))
		refs = append(refs, s)
	}
	return out.String(), refs
}

// unmark replaces the marks of marked by the values of their references.
func (e *expander) unmark(s, mark string, refs []segment, at Origin) string {
	var out strings.Builder
	for {
		before, after, found := strings.Cut(s, mark)
		out.WriteString(before)
		if !found {
			return out.String()
		}
		id, rest, _ := strings.Cut(after, "_")
		s = rest
		if id == "d" {
			out.WriteByte('$')
			continue
		}
		n, err := strconv.Atoi(id)
		if err != nil || n >= len(refs) {
			panic("harness: a mark that was not written")
		}
		v, ok := refs[n].value(e.lookup)
		if !ok {
			e.unset[refs[n].name] = append(e.unset[refs[n].name], at)
		}
		out.WriteString(v)
	}
}

// unusedWord is a word of letters that does not occur in the text.
func unusedWord(text string) string {
	for word := "reference"; ; word += "x" {
		if !strings.Contains(text, word) {
			return word
		}
	}
}

// lineOf is the number of the line that sets a variable.
func lineOf(text, name string) int {
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "export "))
		if strings.HasPrefix(line, name+"=") {
			return i + 1
		}
	}
	return 1
}

// parseProblems makes problems of the errors of a .env file.
func parseProblems(name string, err error) Problems {
	var ps Problems
	var many interface{ Unwrap() []error }
	list := []error{err}
	if errors.As(err, &many) {
		list = many.Unwrap()
	}
	for _, err := range list {
		at := Origin{File: name, Line: 1, Column: 1}
		text := err.Error()
		var syntax *env.SyntaxError
		if errors.As(err, &syntax) {
			at.Line, at.Column, text = syntax.Line, syntax.Column, syntax.Msg
		}
		ps.errorf(at, RuleSyntax, "%s", text)
	}
	return ps
}

// checkEnvFiles reads those .env files of the host whose sources contain no
// references. Reserved names are errors; names that env.sandbox overrides are
// warnings.
func (h *Harness) checkEnvFiles(ps *Problems) {
	h.envFiles = Map{}
	for _, f := range h.HostFiles {
		if src, ok := h.known(f.Src); ok && src.V != "" {
			h.checkSource(ps, f, src)
		}
	}
}

func (h *Harness) checkSource(ps *Problems, f HostFile, src Text) {
	name := h.Path(src)
	if !isEnvFile(f.Dest.V) {
		if _, err := os.Stat(name); err != nil && !f.Optional.V && !filepath.IsAbs(src.V) {
			ps.errorf(src.At, RulePath, "host_files.src: %s: %v", clip(src.V), withoutPath(err))
		}
		return
	}
	data, err := ReadFile(name)
	if err != nil {
		if !f.Optional.V || !errors.Is(err, fs.ErrNotExist) {
			ps.errorf(src.At, RulePath, "host_files.src: %s: %v", clip(src.V), err)
		}
		return
	}
	for _, v := range h.namesOf(ps, shownName(name), data, f.Expand.V) {
		h.EnvFileVars = append(h.EnvFileVars, v)
		if own, ok := h.Env.Sandbox[v.V]; ok {
			ps.warnf(own.At, RuleShadowed, "env.sandbox wins over %s in %s:%d", v.V, v.At.File, v.At.Line)
			ps.hint("write the variable in one of the two places")
		}
	}
}

// namesOf are the variables of a .env file, with their positions.
func (h *Harness) namesOf(ps *Problems, name string, data []byte, expand bool) Texts {
	all := newExpander(func(string) (string, bool) { return "", true })
	vars, problems := all.envVars(name, data, expand)
	var names []string
	if needsShell(problems) {
		if script, sets, ok := all.shellEnv(name, data, expand); ok {
			if script != nil {
				names = sets
			}
			problems = all.ps
		}
	}
	*ps = append(*ps, problems...)
	for _, v := range vars {
		names = append(names, v.Name)
		h.envFiles[v.Name] = Text{v.Value, Origin{File: name, Line: lineOf(string(data), v.Name), Column: 1}}
	}
	out := make(Texts, len(names))
	for i, n := range names {
		out[i] = Text{n, Origin{File: name, Line: lineOf(string(data), n), Column: 1}}
	}
	return out
}
