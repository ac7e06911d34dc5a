package supervisor

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"agentsh/policy"
	"agentsh/seccomp/target"
	"agentsh/supervisor/notify"
	"agentsh/supervisor/view"
)

// rules are one policy with what is derived from it for one session. A decision
// is made by one value of rules.
type rules struct {
	policy   *policy.Policy
	evaluate func(policy.Request) (policy.Decision, policy.Diagnostic) // completed by the confinement
	known    func() (*notify.Identities, error)                        // of the files of denied programs; waits for them
	inject   []string                                                  // NAME=value, which every program gets back
}

// rulesInForce are the rules that decide now. A reload replaces them.
type rulesInForce struct {
	atomic.Pointer[rules]
	reloading sync.Mutex // one reload at a time
}

// policy is the policy in force.
func (r *rulesInForce) policy() *policy.Policy { return r.Load().policy }

// makeRules derives the rules of a policy. It records the files of denied
// programs below root, so that copies and links of them are recognised. inject is
// env_inject of the operator.
func makeRules(p *policy.Policy, c view.Confinement, root notify.Root, inject map[string]string) (*rules, error) {
	r := beginRules(p, c, root, inject)
	if err := r.ready(); err != nil {
		return nil, err
	}
	return r, nil
}

// beginRules are rules that record the files of denied programs beside the caller, which calls
// ready before the first command, and before it closes root.
func beginRules(p *policy.Policy, c view.Confinement, root notify.Root, inject map[string]string) *rules {
	known := sync.OnceValues(func() (*notify.Identities, error) { return notify.BuildIdentities(p.DeniedPrograms(), root) })
	go func() { _, _ = known() }() // ready returns the error
	return &rules{policy: p, evaluate: c.Evaluate(p), known: known, inject: nestedInject(p, c, inject)}
}

// ready waits until the files of denied programs are recorded.
func (r *rules) ready() error {
	if r.known == nil {
		return nil // no command can run yet
	}
	_, err := r.known()
	return err
}

// identify says which denied programs a file is.
func (r *rules) identify(h *target.Handle) (notify.FileIdentity, error) {
	known, err := r.known()
	if err != nil {
		return notify.FileIdentity{}, err
	}
	return known.Of(h)
}

// nestedInject are the injected variables that every program gets back at its
// execve: those of the operator, and those of the policy that are enforced there.
func nestedInject(p *policy.Policy, c view.Confinement, inject map[string]string) []string {
	values := map[string]string{}
	maps.Copy(values, c.Inject(inject))
	nested := p.EnvNested()
	for name, value := range c.Inject(p.EnvInject()) {
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

// notify is what the notification loop needs of the rules.
func (r *rules) notify() notify.Rules {
	return notify.Rules{Evaluate: r.evaluate, Prompt: true, Identify: r.identify, Inject: r.inject, EvaluateRead: r.evaluateRead}
}

// evaluateRead decides on reading a file below [notify.Emulated], by the rules
// that name that directory. Without one the file may be read.
func (r *rules) evaluateRead(path string) (policy.Decision, policy.Diagnostic) {
	d, why, ok := r.policy.EvaluateBelow(notify.Emulated, &policy.FileRequest{Path: path, Op: policy.OpRead})
	if !ok {
		d.Effect = policy.Allow
	}
	return d, why
}
