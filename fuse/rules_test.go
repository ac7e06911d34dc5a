package fuse

import (
	"strings"

	"gopkg.in/yaml.v3"

	"agentsh/policy"
)

type fakeRule struct {
	Name       string
	Paths      []string
	Operations []string
	Decision   string
	rule       *policy.Rule
}

type fakeRules struct {
	Files []fakeRule `yaml:"file_rules"`
}

var opWords = strings.Fields("read write create delete rename list stat chmod chown link symlink mkdir rmdir mknod xattr utime execute")

func loadForTest(c *Config) (Rules, error) {
	var r fakeRules
	if err := yaml.Unmarshal(c.Policy[0].Data, &r); err != nil {
		return nil, err
	}
	effects := map[string]policy.Effect{"allow": policy.Allow, "deny": policy.Deny, "audit": policy.Audit, "approve": policy.Approve, "redirect": policy.Redirect, "soft_delete": policy.SoftDelete}
	for i := range r.Files {
		f := &r.Files[i]
		f.rule = &policy.Rule{Name: f.Name, Group: policy.GroupFile, Pos: policy.Position{File: "test.yaml", Line: i + 1, Column: 1}, Effect: effects[f.Decision]}
	}
	return &r, nil
}

func covers(pattern, path string) bool {
	if dir, ok := strings.CutSuffix(pattern, "/**"); ok {
		return path == dir || strings.HasPrefix(path, dir+"/")
	}
	return path == pattern
}

func (r *fakeRules) Evaluate(q policy.Request) (policy.Decision, policy.Diagnostic) {
	f := q.(*policy.FileRequest)
	for _, rule := range r.Files {
		for _, p := range rule.Paths {
			if !covers(p, f.Path) {
				continue
			}
			for _, op := range rule.Operations {
				if op == "*" {
					return policy.Decision{Effect: rule.rule.Effect, Rule: rule.rule}, policy.Diagnostic{Rule: rule.Name, Message: "denied", Hint: "do not"}
				}
				for i, w := range opWords {
					if w == op && f.Op == 1<<i {
						return policy.Decision{Effect: rule.rule.Effect, Rule: rule.rule}, policy.Diagnostic{Rule: rule.Name, Message: "denied", Hint: "do not"}
					}
				}
			}
		}
	}
	return policy.Decision{}, policy.Diagnostic{Rule: "default"}
}

func (r *fakeRules) Tree(root string, ops policy.FileOp) policy.TreeVerdict {
	rule := r.Files[0]
	for _, p := range rule.Paths {
		if p == root+"/**" && rule.Operations[0] == "*" {
			return policy.TreeVerdict{Uniform: true, Effect: rule.rule.Effect}
		}
	}
	return policy.TreeVerdict{}
}
func (r *fakeRules) Roots() []string { return nil }
func (r *fakeRules) Rules(policy.Group) []*policy.Rule {
	var out []*policy.Rule
	for _, f := range r.Files {
		out = append(out, f.rule)
	}
	return out
}
