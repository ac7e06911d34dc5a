package strictyaml

import (
	"path/filepath"
	"strings"
)

// Kinds of files of the project.
const (
	Policy        = "a policy"
	Tests         = "a file of tests"
	Harness       = "a harness"
	Provider      = "a provider"
	Configuration = "a configuration"
	Batch         = "a batch"
)

// ConfigurationDialect is what a configuration file may contain.
var ConfigurationDialect = Dialect{
	MaxDepth: 12, Controls: true, CoreTags: true, Empty: true,
	Texts: Texts{
		NotMapping: Text{Message: "%s must be a mapping"},
		TwiceKey:   Text{Message: "%s has the key %[2]q twice"},
		NotText:    Text{Message: "must be a text"},
	},
}

// KindOf is the kind of a file by its keys; empty: they do not tell.
func KindOf(root *Node) string { return kindOf(root, "") }

// kindOf recognises a file by the keys that only its kind has. It is empty where
// none of them stands in the file. A harness can have degraded as well.
func kindOf(n *Node, want string) string {
	kind := ""
	for key := range Pairs(n) {
		switch name := key.Value; {
		case name == "tests":
			return Tests
		case name == "agent":
			return Harness
		case name == "runs" || name == "matrix":
			return Batch
		case strings.HasSuffix(name, "_rules") || name == "extends" || name == "env_policy" || name == "resource_limits":
			kind = Policy
		case kind == "" && (name == "credentials" || name == "endpoints"):
			kind = Provider
		case kind == "" && (name == "degraded" && want != Harness || name == "sandbox" || name == "trash"):
			kind = Configuration
		}
	}
	return kind
}

// OtherKind reports a file of another kind than the wanted one: one problem instead
// of one for each of its keys.
func (r *Reader) OtherKind(n *Node, want string) bool {
	kind := kindOf(n, want)
	if kind == "" || kind == want {
		return false
	}
	base := filepath.Base(r.File)
	hint := map[string]string{
		Policy:        "check it with 'agentsh policy check " + r.File + "'",
		Tests:         "run it with 'agentsh policy test " + r.File + "'",
		Harness:       "check it with 'agentctl lint " + r.File + "'",
		Provider:      "name it in providers of a harness",
		Configuration: "try it with 'agentsh detect'",
		Batch:         "run it with 'agentctl batch " + r.File + "'",
	}[kind]
	if kind == Policy && want == Tests {
		stem := strings.TrimSuffix(base, filepath.Ext(base))
		hint = "write its tests in " + stem + "_test.yaml, which begins with 'policy: " + base + "'"
	}
	r.Fail(n, hint, "this is %s, not %s", kind, want)
	return true
}
