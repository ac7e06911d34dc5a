// Package policytest runs the tests that stand beside a policy, measures which
// rules they reach and which changes of a rule they notice, and compares
// policies by what they decide.
package policytest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"agentsh/internal/gitguard"
	"agentsh/policy"
)

// MaxSuite is the largest test file, in bytes.
const MaxSuite = 4 << 20

// Suite is one test file.
type Suite struct {
	File   string
	Policy string            // the policy it tests, relative to the directory of File
	Vars   map[string]string // what ${NAME} stands for, in the policy and in the cases
	Cases  []Case
}

// Case is one request and what the policy must decide about it.
type Case struct {
	Name     string
	Pos      policy.Position
	Request  policy.Request // nil when Variable or Repository is set
	Variable *Variable
	// Repository asks whether git_guard lets a repository hold a file.
	Repository *Repository
	Want       Want
}

// Repository is a file of a repository in the project.
type Repository struct {
	File, Content string // relative to the git directory; .git: the file that stands for one
	At            gitguard.Place
}

// Variable asks whether a variable of the request reaches a command.
type Variable struct {
	Name    string
	Command *policy.CommandRequest
}

// Want is an expectation. Empty fields are not compared.
type Want struct {
	Effect  policy.Effect
	Rule    string // name of the rule, or "default"
	Message string // part of the message
}

// Vars are the values variables have when a test file does not set them.
func Vars() map[string]string {
	return map[string]string{
		"WORKSPACE": "/workspace", "PROJECT_ROOT": "/workspace", "GIT_ROOT": "/workspace", "HOME": "/home/agent", "TMPDIR": "/tmp",
	}
}

// ParseSuite reads a test file. The error is [policy.Problems], all of them.
func ParseSuite(file string, data []byte) (*Suite, error) {
	r := &suiteReader{file: file, suite: &Suite{File: file, Vars: Vars()}}
	root := r.document(data)
	if root != nil {
		r.root(root)
	}
	if len(r.problems) > 0 {
		return nil, r.problems
	}
	return r.suite, nil
}

// suiteReader reads one file and collects problems.
type suiteReader struct {
	file     string
	suite    *Suite
	problems policy.Problems
}

func (r *suiteReader) pos(n *yaml.Node) policy.Position {
	return policy.Position{File: r.file, Line: n.Line, Column: n.Column}
}

func (r *suiteReader) fail(n *yaml.Node, format string, args ...any) {
	if len(r.problems) < 100 {
		r.problems = append(r.problems, policy.Problem{Pos: r.pos(n), Message: fmt.Sprintf(format, args...)})
	}
}

var yamlLine = regexp.MustCompile(`^line (\d+): `)

// document parses the YAML and refuses what makes small files big.
func (r *suiteReader) document(data []byte) (root *yaml.Node) {
	top := &yaml.Node{Line: 1, Column: 1}
	if len(data) > MaxSuite {
		r.fail(top, "the file has %d bytes, at most %d are read", len(data), MaxSuite)
		return nil
	}
	defer func() {
		if p := recover(); p != nil {
			r.fail(top, "not YAML: %v", p)
			root = nil
		}
	}()
	var doc yaml.Node
	if err := yaml.NewDecoder(bytes.NewReader(data)).Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			r.fail(top, "the file is empty")
			return nil
		}
		text := strings.TrimPrefix(err.Error(), "yaml: ")
		if m := yamlLine.FindStringSubmatch(text); m != nil {
			top.Line, _ = strconv.Atoi(m[1]) // digits, by the expression
		}
		r.fail(top, "not YAML: %s", yamlLine.ReplaceAllString(text, ""))
		return nil
	}
	if len(doc.Content) == 0 || !r.plain(doc.Content[0], 0) {
		return nil
	}
	return doc.Content[0]
}

// plain refuses anchors, aliases and deep nesting.
func (r *suiteReader) plain(n *yaml.Node, depth int) bool {
	if n.Kind == yaml.AliasNode || n.Anchor != "" || depth > 12 {
		r.fail(n, "anchors, aliases and deep nesting are not part of a test file")
		return false
	}
	for _, c := range n.Content {
		if !r.plain(c, depth+1) {
			return false
		}
	}
	return true
}

// fields calls the reader of each key of a mapping. Unknown and repeated keys
// are problems.
func (r *suiteReader) fields(n *yaml.Node, what string, readers map[string]func(*yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		r.fail(n, "%s must be a mapping of keys to values", what)
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		read, known := readers[key.Value]
		switch {
		case !known:
			keys := strings.Join(slices.Sorted(maps.Keys(readers)), ", ")
			r.fail(key, "%s has no key %q, it has %s", what, key.Value, keys)
		case seen[key.Value]:
			r.fail(key, "key %q is given twice", key.Value)
		default:
			read(n.Content[i+1])
		}
		seen[key.Value] = true
	}
}

func (r *suiteReader) root(n *yaml.Node) {
	var tests *yaml.Node
	r.fields(n, "a test file", map[string]func(*yaml.Node){
		"policy": func(v *yaml.Node) { r.suite.Policy = r.raw(v) },
		"vars":   r.vars,
		"tests":  func(v *yaml.Node) { tests = v },
	})
	if r.suite.Policy == "" {
		r.fail(n, "the test file names no policy")
	}
	if tests == nil || tests.Kind != yaml.SequenceNode || len(tests.Content) == 0 {
		r.fail(n, "tests must be a list of cases")
		return
	}
	names := map[string]bool{}
	for _, c := range tests.Content {
		kase := r.kase(c)
		if names[kase.Name] {
			r.fail(c, "two cases are called %q", kase.Name)
		}
		names[kase.Name] = true
		r.suite.Cases = append(r.suite.Cases, kase)
	}
}

func (r *suiteReader) vars(n *yaml.Node) {
	if n.Kind != yaml.MappingNode {
		r.fail(n, "vars must be a mapping of names to values")
		return
	}
	given := map[string]string{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		given[n.Content[i].Value] = r.raw(n.Content[i+1])
	}
	if workspace := given["WORKSPACE"]; workspace != "" {
		r.suite.Vars["PROJECT_ROOT"], r.suite.Vars["GIT_ROOT"] = workspace, workspace
	}
	maps.Copy(r.suite.Vars, given)
}

// raw reads a text without variables.
func (r *suiteReader) raw(n *yaml.Node) string {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		r.fail(n, "must be text")
		return ""
	}
	return n.Value
}

var variable = regexp.MustCompile(`\$\{[^}]*\}`)

// text reads a text and replaces ${NAME}.
func (r *suiteReader) text(n *yaml.Node) string {
	return variable.ReplaceAllStringFunc(r.raw(n), func(ref string) string {
		name := ref[2 : len(ref)-1]
		value, ok := r.suite.Vars[name]
		if !ok {
			r.fail(n, "variable %s is not defined: give it a value under vars", name)
		}
		return value
	})
}

func (r *suiteReader) texts(n *yaml.Node) []string {
	if n.Kind != yaml.SequenceNode {
		r.fail(n, "must be a list, written as [one, two]")
		return nil
	}
	out := []string{}
	for _, item := range n.Content {
		out = append(out, r.text(item))
	}
	return out
}

func (r *suiteReader) number(n *yaml.Node) int {
	var v int
	if n.Kind != yaml.ScalarNode || n.Decode(&v) != nil {
		r.fail(n, "must be a whole number")
	}
	return v
}

func (r *suiteReader) flag(n *yaml.Node) bool {
	var v bool
	if n.Kind != yaml.ScalarNode || n.Decode(&v) != nil {
		r.fail(n, "must be true or false")
	}
	return v
}

// kase reads one case: a name, exactly one kind of request, an expectation.
func (r *suiteReader) kase(n *yaml.Node) Case {
	c := Case{Pos: r.pos(n)}
	var requests []string
	expected := false
	command := &commandFields{}
	one := func(kind string, read func(*yaml.Node)) func(*yaml.Node) {
		return func(v *yaml.Node) {
			requests = append(requests, kind)
			read(v)
		}
	}
	readers := map[string]func(*yaml.Node){
		"name":        func(v *yaml.Node) { c.Name = r.raw(v) },
		"command":     one("command", func(v *yaml.Node) { command.argv = r.texts(v) }),
		"file":        one("file", func(v *yaml.Node) { c.Request = r.fileRequest(v) }),
		"network":     one("network", func(v *yaml.Node) { c.Request = r.networkRequest(v) }),
		"unix_socket": one("unix_socket", func(v *yaml.Node) { c.Request = r.unixRequest(v) }),
		"signal":      one("signal", func(v *yaml.Node) { c.Request = r.signalRequest(v) }),
		"repository":  one("repository", func(v *yaml.Node) { c.Repository = r.repository(v) }),
		"variable":    func(v *yaml.Node) { c.Variable = &Variable{Name: r.raw(v)} },
		"expect":      func(v *yaml.Node) { expected = true; c.Want = r.want(v) },
	}
	r.commandReaders(readers, command)
	r.fields(n, "a case", readers)
	if c.Name == "" {
		r.fail(n, "the case has no name")
	}
	if !expected {
		r.fail(n, "the case expects nothing: write expect: allow or another decision")
	}
	if len(requests) != 1 && (c.Variable == nil || len(requests) > 0) {
		r.fail(n, "a case has exactly one of command, file, network, unix_socket, signal, repository")
	}
	r.finish(n, &c, command)
	return c
}

// finish joins the parts of a command case.
func (r *suiteReader) finish(n *yaml.Node, c *Case, command *commandFields) {
	if command.argv == nil {
		if command.more {
			r.fail(n, "path, cwd, depth, parent, ancestors, chain, same and interactive belong to a command")
		}
		if c.Variable != nil && c.Request == nil {
			c.Variable.Command = &policy.CommandRequest{}
		}
		return
	}
	request := r.command(n, command)
	if c.Variable != nil {
		c.Variable.Command = request
		return
	}
	c.Request = request
}

func (r *suiteReader) want(n *yaml.Node) Want {
	if n.Kind == yaml.ScalarNode {
		return Want{Effect: r.effect(n)}
	}
	var w Want
	found := false
	r.fields(n, "expect", map[string]func(*yaml.Node){
		"decision": func(v *yaml.Node) { found = true; w.Effect = r.effect(v) },
		"rule":     func(v *yaml.Node) { w.Rule = r.raw(v) },
		"message":  func(v *yaml.Node) { w.Message = r.raw(v) },
	})
	if !found {
		r.fail(n, "expect has no decision")
	}
	return w
}

// effects are all decisions, in the order of their values.
var effects = []policy.Effect{
	policy.Deny, policy.Allow, policy.Audit, policy.Approve, policy.Redirect, policy.SoftDelete, policy.Absorb,
}

func (r *suiteReader) effect(n *yaml.Node) policy.Effect {
	var words []string
	for _, e := range effects {
		if n.Kind == yaml.ScalarNode && e.String() == n.Value {
			return e
		}
		words = append(words, e.String())
	}
	r.fail(n, "unknown decision %q, one of %s", n.Value, strings.Join(words, ", "))
	return policy.Deny
}

func (r *suiteReader) operation(n *yaml.Node) policy.FileOp {
	op, ok := policy.ParseFileOp(r.raw(n))
	if !ok || op&(op-1) != 0 {
		r.fail(n, "%q is not one operation of file_rules", n.Value)
	}
	return op
}
