package supervisor

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"agentsh/policy"
)

// Requirement is a word of require in the operator's configuration: something
// that must be proven before a session opens.
type Requirement struct {
	Word string
	At   string // file:line:column
}

// required is what a word asks for.
type required struct {
	primitives []string            // each is tried
	of         func(*Config) error // of the session; nil: nothing
}

// requirements are the words of require. doc/detect.md explains them.
var requirements = map[string]required{
	"exec_verify":       {primitives: []string{"seccomp_notify", "ptrace", "proc_mem"}},
	"env_inject_nested": {primitives: []string{"seccomp_notify", "ptrace", "proc_mem"}},
	"file_governed":     {primitives: []string{"mount_namespace", "fuse"}, of: governsFiles},
	"fuse_passthrough":  {primitives: []string{"fuse", "fuse_passthrough"}, of: governsFiles},
	"mount_namespace":   {primitives: []string{"mount_namespace", "mount_api"}},
	"pid_namespace":     {primitives: []string{"pid_namespace"}},
	"net_namespace":     {primitives: []string{"net_namespace"}, of: ownNetwork},
	"landlock":          {primitives: []string{"landlock"}},
	"landlock_scopes":   {primitives: []string{"landlock_scopes"}},
	"cgroup":            {primitives: []string{"cgroup"}},
}

func governsFiles(c *Config) error {
	if len(c.Files.Governed) == 0 {
		return errors.New("the session has no workspace under file policy")
	}
	return nil
}

func ownNetwork(c *Config) error {
	if c.Network.Shared {
		return errors.New("the session shares the network of this machine")
	}
	return nil
}

// meets tries what the configuration requires. The error has a line for each
// word that is not proven.
func (c *Config) meets() error {
	var problems []string
	tried := map[string]error{}
	for _, r := range c.Require {
		want := requirements[r.Word] // the reader of the configuration knows them all
		if want.of != nil {
			if err := want.of(c); err != nil {
				problems = append(problems, fmt.Sprintf("%s: require %s: %v", r.At, r.Word, err))
				continue
			}
		}
		for _, name := range want.primitives {
			err, done := tried[name]
			if !done {
				err = tryCandidate(name)
				tried[name] = err
			}
			if err != nil {
				problems = append(problems, fmt.Sprintf("%s: require %s: not proven here: %v", r.At, r.Word, err))
				break
			}
		}
	}
	if len(problems) > 0 {
		return errors.New(strings.Join(problems, "\n"))
	}
	return nil
}

// tryCandidate tries one primitive by its name.
func tryCandidate(name string) error {
	for _, c := range candidates {
		if c.name != name {
			continue
		}
		if _, err := c.try(); err != nil {
			return fmt.Errorf("%s: %w (to change: %s)", c.what, err, c.change)
		}
		return nil
	}
	return fmt.Errorf("%s: nothing is known to try", name)
}

// require reads the words of require.
func (r *configReader) require(into *[]Requirement) func(*yaml.Node) {
	return func(n *yaml.Node) {
		r.words(n, "require", slices.Sorted(maps.Keys(requirements)), func(word, at string) {
			*into = append(*into, Requirement{word, at})
		})
	}
}

// words reads a list of known words, each with where it stands.
func (r *configReader) words(n *yaml.Node, key string, known []string, add func(word, at string)) {
	if n.Kind != yaml.SequenceNode {
		r.problem(n, "%s must be a list of words", key)
		return
	}
	for _, item := range n.Content {
		var word string
		r.text(&word)(item)
		if !slices.Contains(known, word) && item.Kind == yaml.ScalarNode {
			r.problem(item, "%s has no word %q (%s)", key, word, policy.DidYouMean(word, known))
			continue
		}
		add(word, fmt.Sprintf("%s:%d:%d", r.path, item.Line, item.Column))
	}
}
