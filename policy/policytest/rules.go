package policytest

import (
	"errors"
	"slices"
	"strings"

	"agentsh/internal/strictyaml"
	"agentsh/policy"
)

// groupKeys are the keys of a policy file that hold rules.
var groupKeys = map[policy.Group]string{
	policy.GroupCommand:    "command_rules",
	policy.GroupFile:       "file_rules",
	policy.GroupNetwork:    "network_rules",
	policy.GroupUnixSocket: "unix_socket_rules",
	policy.GroupSignal:     "signal_rules",
}

// writtenRule is a rule as written in a file.
type writtenRule struct {
	group policy.Group
	node  *strictyaml.Node
	vars  map[string]string
}

// written returns the rules of every file of a policy.
func written(p *policy.Policy) ([]writtenRule, error) {
	var out []writtenRule
	for _, source := range p.Sources() {
		root, err := parseSource(source)
		if err != nil {
			return nil, err
		}
		for _, g := range groups {
			list := strictyaml.Value(root, groupKeys[g])
			if list == nil {
				continue
			}
			for _, n := range list.Content {
				out = append(out, writtenRule{g, n, p.Vars()})
			}
		}
	}
	return out, nil
}

// loaded is the dialect of files that have already been loaded.
var loaded = strictyaml.Dialect{Controls: true, CoreTags: true}

// parseSource parses a file that has already been loaded.
func parseSource(source policy.Source) (*strictyaml.Node, error) {
	var problem error
	root := strictyaml.Parse(source.Name, source.Data, &loaded, func(p strictyaml.Problem) { problem = errors.New(p.String()) })
	return root, problem
}

// texts returns the texts at keys with variables replaced. The value of a key
// is a list of texts or one text. A missing key has none.
func (w writtenRule) texts(keys ...string) []string {
	n := w.node
	for _, key := range keys {
		n = strictyaml.Value(n, key)
	}
	switch {
	case n == nil:
		return nil
	case n.Kind == strictyaml.Scalar:
		return []string{w.expand(n.Value)}
	}
	var out []string
	for _, item := range n.Content {
		if item.Kind == strictyaml.Scalar {
			out = append(out, w.expand(item.Value))
		}
	}
	return out
}

// expand replaces ${NAME} and ${NAME:-default}.
func (w writtenRule) expand(s string) string {
	return variable().ReplaceAllStringFunc(s, func(ref string) string {
		name, fallback, _ := strings.Cut(ref[2:len(ref)-1], ":-")
		if v := w.vars[name]; v != "" {
			return v
		}
		return fallback
	})
}

// bounded returns at most n items of a list without duplicates.
func bounded(list []string, n int) []string {
	seen := make(map[string]bool, len(list))
	out := list[:0:0]
	for _, s := range list {
		if !seen[s] && len(out) < n {
			seen[s] = true
			out = append(out, s)
		}
	}
	return out
}

// globTexts returns texts that a pattern matches, and texts that it nearly
// matches.
func globTexts(pattern string) []string {
	texts := []string{""}
	for len(pattern) > 0 {
		var parts []string
		parts, pattern = globPart(pattern)
		texts = product(texts, parts, "")
	}
	return bounded(texts, 64)
}

// globPart removes the first part of a pattern and returns texts for it.
func globPart(p string) (texts []string, rest string) {
	switch {
	case strings.HasPrefix(p, "/**"):
		return []string{"", "/x", "/x/y"}, p[3:]
	case strings.HasPrefix(p, "**/"):
		return []string{"", "x/", "x/y/"}, p[3:]
	case strings.HasPrefix(p, "**"):
		return []string{"x", "", "x/y"}, p[2:]
	case p[0] == '*':
		return []string{"x", "", "x y"}, p[1:]
	case p[0] == '?':
		return []string{"x"}, p[1:]
	case p[0] == '\\' && len(p) > 1:
		return []string{p[1:2]}, p[2:]
	case p[0] == '[':
		return setTexts(p)
	case p[0] == '{':
		return braceTexts(p)
	}
	end := 1
	for end < len(p) && !strings.ContainsRune(`*?[{\`, rune(p[end])) && !strings.HasPrefix(p[end:], "/**") {
		end++
	}
	return []string{p[:end]}, p[end:]
}

// setTexts handles [abc] or [!abc].
func setTexts(p string) (texts []string, rest string) {
	end := strings.IndexByte(p, ']')
	if end < 2 {
		return []string{"["}, p[1:]
	}
	set := p[1:end]
	if set[0] == '!' || set[0] == '^' {
		for _, c := range "x0_-A" {
			if !strings.ContainsRune(set[1:], c) {
				texts = append(texts, string(c))
			}
		}
		return texts, p[end+1:]
	}
	return []string{set[:1], set[len(set)-1:]}, p[end+1:]
}

// braceTexts handles {a,b}, which may contain further braces.
func braceTexts(p string) (texts []string, rest string) {
	depth, start := 0, 1
	for i := 0; i < len(p); i++ {
		switch p[i] {
		case '\\':
			i++
		case '{':
			depth++
		case ',', '}':
			if depth == 1 {
				texts = append(texts, globTexts(p[start:i])...)
				start = i + 1
			}
			if p[i] == '}' {
				depth--
			}
			if depth == 0 {
				return texts, p[i+1:]
			}
		}
	}
	return []string{"{"}, p[1:]
}

// product concatenates every text of a with every text of b.
func product(a, b []string, between string) []string {
	out := make([]string, 0, len(a)*len(b))
	for _, x := range a {
		for _, y := range b {
			out = append(out, x+between+y)
		}
		if len(out) > 256 {
			break
		}
	}
	return out
}

// all collects the results of each for the items of a list.
func all(list []string, each func(string) []string) []string {
	var out []string
	for _, s := range list {
		out = append(out, each(s)...)
	}
	return slices.Clip(bounded(out, 512))
}
