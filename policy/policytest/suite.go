// Package policytest runs the tests of a policy. It measures which rules they
// reach and which changes of a rule they notice, and compares the decisions of
// policies.
package policytest

import (
	"maps"
	"math"
	"strings"

	"agentsh/internal/gitguard"
	"agentsh/internal/lazy"
	"agentsh/internal/mistake"
	"agentsh/internal/strictyaml"
	"agentsh/policy"
)

// MaxSuite is the largest test file, in bytes.
const MaxSuite = 4 << 20

// Suite is one test file.
type Suite struct {
	File   string
	Policy string            // the policy it tests, relative to the directory of File
	Vars   map[string]string // values of ${NAME} in the policy and in the cases
	Cases  []Case
}

// Case is one request and the expected decision.
type Case struct {
	Name     string
	Pos      policy.Position
	Request  policy.Request // nil when Variable or Repository is set
	Plain    bool           // a command of which the case says only the arguments, and nothing about its file
	Variable *Variable
	// Repository asks whether git_guard lets a repository hold a file.
	Repository *Repository
	Want       Want
}

// Repository is a file of a repository in the project.
type Repository struct {
	File, Content string // relative to the git directory; .git: the file that replaces a directory
	At            gitguard.Location
}

// Variable asks whether a variable of the request reaches a command.
type Variable struct {
	Name    string
	Command *policy.CommandRequest
}

// Want is the expected decision. Empty fields are not compared.
type Want struct {
	Effect  policy.Effect
	Rule    string // name of the rule, or "default"
	Message string // part of the message
}

// Vars returns the values of variables that a test file does not set.
func Vars() map[string]string {
	return map[string]string{
		"WORKSPACE": "/workspace", "PROJECT_ROOT": "/workspace", "GIT_ROOT": "/workspace", "HOME": "/home/agent", "TMPDIR": "/tmp",
		"USER_HOME": "/home/user", "WORKSPACE_HOME": "/workspace/home",
	}
}

// ParseSuite parses a test file. The error is [policy.Problems]: all problems
// of the file.
func ParseSuite(file string, data []byte) (*Suite, error) {
	r := newSuiteReader(file)
	if root := strictyaml.Parse(file, data, &dialect, r.report); root != nil {
		r.root(root)
	}
	if len(r.problems) > 0 {
		return nil, r.problems
	}
	return r.suite, nil
}

// dialect is what a test file may contain.
var dialect = strictyaml.Dialect{
	MaxBytes: MaxSuite, MaxDepth: 12, Controls: true, CoreTags: true,
	Texts: strictyaml.Texts{
		TooLarge: strictyaml.Text{Message: "the file has %d bytes, at most %d are read"},
		NotList:  strictyaml.Text{Message: "must be a list, written as [one, two]"},
	},
}

// suiteReader reads one file and collects problems.
type suiteReader struct {
	strictyaml.Reader
	suite    *Suite
	problems policy.Problems
}

func newSuiteReader(file string) *suiteReader {
	r := &suiteReader{suite: &Suite{File: file, Vars: Vars()}}
	r.Reader = strictyaml.NewReader(file, &dialect, r.report)
	return r
}

func (r *suiteReader) report(p strictyaml.Problem) {
	if len(r.problems) < 100 {
		pos := policy.Position{File: p.File, Line: p.Line, Column: p.Column}
		r.problems = append(r.problems, policy.Problem{Pos: pos, Message: p.Message, Hint: p.Hint})
	}
}

func (r *suiteReader) pos(n *strictyaml.Node) policy.Position {
	return policy.Position{File: r.File, Line: n.Line, Column: n.Column}
}

func (r *suiteReader) fail(n *strictyaml.Node, format string, args ...any) {
	r.Fail(n, "", format, args...)
}

func (r *suiteReader) root(n *strictyaml.Node) {
	if r.OtherKind(n, strictyaml.Tests) {
		return
	}
	var tests *strictyaml.Node
	r.Fields(n, "a test file", map[string]func(*strictyaml.Node){
		"policy": func(v *strictyaml.Node) { r.suite.Policy = r.raw(v) },
		"vars":   r.vars,
		"tests":  func(v *strictyaml.Node) { tests = v },
	})
	if r.suite.Policy == "" {
		r.fail(n, "the test file names no policy")
	}
	if tests == nil || tests.Kind != strictyaml.List || len(tests.Content) == 0 {
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

func (r *suiteReader) vars(n *strictyaml.Node) {
	if n.Kind != strictyaml.Mapping {
		r.fail(n, "vars must be a mapping of names to values")
		return
	}
	given := map[string]string{}
	for name, value := range strictyaml.Pairs(n) {
		given[name.Value] = r.raw(value)
	}
	if workspace := given["WORKSPACE"]; workspace != "" {
		r.suite.Vars["PROJECT_ROOT"], r.suite.Vars["GIT_ROOT"] = workspace, workspace
	}
	maps.Copy(r.suite.Vars, given)
}

// raw reads a text without variables.
func (r *suiteReader) raw(n *strictyaml.Node) string {
	s, _ := r.Text(n)
	return s
}

var variable = lazy.Regexp(`\$\{[^}]*\}`)

// text reads a text and replaces ${NAME}.
func (r *suiteReader) text(n *strictyaml.Node) string {
	return variable().ReplaceAllStringFunc(r.raw(n), func(ref string) string {
		name := ref[2 : len(ref)-1]
		value, ok := r.suite.Vars[name]
		if !ok {
			r.fail(n, "variable %s is not defined: give it a value under vars", name)
		}
		return value
	})
}

func (r *suiteReader) texts(n *strictyaml.Node) []string {
	out := []string{}
	if !r.Items(n, func(item *strictyaml.Node) { out = append(out, r.text(item)) }) {
		return nil
	}
	return out
}

func (r *suiteReader) number(n *strictyaml.Node) int {
	v, _ := r.Int(n, math.MinInt32, math.MaxInt32)
	return int(v)
}

func (r *suiteReader) flag(n *strictyaml.Node) bool {
	v, _ := r.Bool(n)
	return v
}

// kase reads one case: a name, exactly one kind of request, an expectation.
func (r *suiteReader) kase(n *strictyaml.Node) Case {
	c := Case{Pos: r.pos(n)}
	var requests []string
	expected := false
	command := &commandFields{}
	one := func(kind string, read func(*strictyaml.Node)) func(*strictyaml.Node) {
		return func(v *strictyaml.Node) {
			requests = append(requests, kind)
			read(v)
		}
	}
	readers := map[string]func(*strictyaml.Node){
		"name":        func(v *strictyaml.Node) { c.Name = r.raw(v) },
		"command":     one("command", func(v *strictyaml.Node) { command.argv = r.argv(v) }),
		"file":        one("file", func(v *strictyaml.Node) { c.Request = r.fileRequest(v) }),
		"network":     one("network", func(v *strictyaml.Node) { c.Request = r.networkRequest(v) }),
		"unix_socket": one("unix_socket", func(v *strictyaml.Node) { c.Request = r.unixRequest(v) }),
		"signal":      one("signal", func(v *strictyaml.Node) { c.Request = r.signalRequest(v) }),
		"repository":  one("repository", func(v *strictyaml.Node) { c.Repository = r.repository(v) }),
		"variable":    func(v *strictyaml.Node) { c.Variable = &Variable{Name: r.checked(v, mistake.Variable)} },
		"expect":      func(v *strictyaml.Node) { expected = true; c.Want = r.want(v) },
	}
	r.commandReaders(readers, command)
	r.Fields(n, "a case", readers)
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
func (r *suiteReader) finish(n *strictyaml.Node, c *Case, command *commandFields) {
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
	c.Plain = len(request.Argv) > 0 && len(request.Same) == 0 && len(request.Chain) == 0 && request.Path == Command(request.Argv).Path
	if c.Variable != nil {
		c.Variable.Command = request
		return
	}
	c.Request = request
}

func (r *suiteReader) want(n *strictyaml.Node) Want {
	if n.Kind == strictyaml.Scalar {
		return Want{Effect: r.effect(n)}
	}
	var w Want
	found := false
	r.Fields(n, "expect", map[string]func(*strictyaml.Node){
		"decision": func(v *strictyaml.Node) { found = true; w.Effect = r.effect(v) },
		"rule":     func(v *strictyaml.Node) { w.Rule = r.raw(v) },
		"message":  func(v *strictyaml.Node) { w.Message = r.raw(v) },
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

func (r *suiteReader) effect(n *strictyaml.Node) policy.Effect {
	var words []string
	for _, e := range effects {
		if n.Kind == strictyaml.Scalar && e.String() == n.Value {
			return e
		}
		words = append(words, e.String())
	}
	r.fail(n, "unknown decision %q, one of %s", n.Value, strings.Join(words, ", "))
	return policy.Deny
}

func (r *suiteReader) operation(n *strictyaml.Node) policy.FileOp {
	op, ok := policy.ParseFileOp(r.raw(n))
	if !ok || op&(op-1) != 0 {
		r.fail(n, "%q is not one operation of file_rules", n.Value)
	}
	return op
}
