package policytest

import (
	"path"
	"strings"

	"agentsh/internal/gitguard"
	"agentsh/internal/strictyaml"
	"agentsh/policy"
)

// repository parses a case about the content of a repository.
func (r *suiteReader) repository(n *strictyaml.Node) *Repository {
	root := r.suite.Vars["PROJECT_ROOT"]
	c := &Repository{At: gitguard.Location{Dir: path.Join(root, ".git"), Roots: []string{r.suite.Vars["WORKSPACE"]}}}
	r.Fields(n, "repository", map[string]func(*strictyaml.Node){
		"file":    func(v *strictyaml.Node) { c.File = r.raw(v) },
		"content": func(v *strictyaml.Node) { c.Content = r.text(v) },
	})
	if c.File != ".git" && !gitguard.Guarded(c.File) {
		r.fail(n, "git_guard judges no file %q: name one as config, hooks/pre-commit or .git", c.File)
	}
	if c.File == ".git" {
		c.At.Dir = root
	}
	return c
}

// judge is what the file server says of the file.
func (c *Repository) judge(p *policy.Policy) (policy.Effect, *policy.Rule, policy.Diagnostic) {
	on, at := p.GitGuard()
	if !on {
		return policy.Allow, nil, policy.Diagnostic{Rule: "default", Message: "git_guard is off"}
	}
	problems := gitguard.CheckFile(c.File, []byte(c.Content), nil, c.At)
	if c.File == ".git" {
		problems = gitguard.CheckGitFile([]byte(c.Content), c.At)
	}
	rule := &policy.Rule{Name: "git_guard", Pos: at}
	if len(problems) == 0 {
		return policy.Allow, rule, policy.Diagnostic{Rule: rule.Name, Pos: at, Message: "git_guard lets it pass"}
	}
	problem := problems[0]
	problem.File = strings.TrimPrefix(c.File, "/")
	return policy.Deny, rule, policy.Diagnostic{Rule: rule.Name, Pos: at, Message: problem.String(), Hint: problem.Hint}
}
