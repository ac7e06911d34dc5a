package supervisor

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"agentsh/policy"
	"agentsh/supervisor/notify"
)

// rules are one policy with what is made of it. Whoever decides takes them once.
type rules struct {
	policy   *policy.Policy
	evaluate func(policy.Request) (policy.Decision, policy.Diagnostic) // by it, as this kind of session does
	known    *notify.Identities                                        // what files are beside their names
	inject   []string                                                  // NAME=value, that every program gets back
}

// policy is the one that holds now.
func (s *Session) policy() *policy.Policy { return s.rules.Load().policy }

// notify is what the notification loop needs of the rules.
func (r *rules) notify() notify.Rules {
	return notify.Rules{Evaluate: r.evaluate, Identify: r.known.Of, Inject: r.inject, EvaluateRead: r.evaluateRead}
}

// evaluateRead decides on reading a file of the kernel: by the rules that name
// its directory. Without one everything that a session shows is read.
func (r *rules) evaluateRead(path string) (policy.Decision, policy.Diagnostic) {
	d, why, ok := r.policy.EvaluateBelow(notify.Emulated, &policy.FileRequest{Path: path, Op: policy.OpRead})
	if !ok {
		d.Effect = policy.Allow
	}
	return d, why
}

// firstRules opens the root that commands see and makes the rules of the policy
// that the session starts with.
func (s *Session) firstRules() (*rules, error) {
	name := s.confinement.Root(s.init.PID())
	root, err := os.OpenFile(name, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("identities of denied programs: %w", err)
	}
	s.root = root
	return s.makeRules(s.cfg.Policy)
}

// makeRules remembers the files that a policy denies, as the session's first
// process sees them, so that copies and links of them are recognised.
func (s *Session) makeRules(p *policy.Policy) (*rules, error) {
	known, err := notify.BuildIdentities(p.DeniedPrograms(), notify.Root{Dir: s.root, Path: strings.Split(s.cfg.Environment.Path, ":")})
	if err != nil {
		return nil, err
	}
	return &rules{policy: p, evaluate: s.confinement.Evaluate(p), known: known, inject: s.nestedInject(p)}, nil
}

// nestedInject are the injected variables that every program gets back at its
// execve: the operator's, and those of the policy that are enforced there.
func (s *Session) nestedInject(p *policy.Policy) []string {
	values := map[string]string{}
	maps.Copy(values, s.confinement.Inject(s.cfg.Environment.Inject))
	nested := p.EnvNested()
	for name, value := range s.confinement.Inject(p.EnvInject()) {
		if slices.Contains(nested, name) {
			values[name] = value
		} else {
			delete(values, name)
		}
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(values)) {
		out = append(out, name+"="+values[name])
	}
	return out
}
