package policytest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"agentsh/internal/wire"
	"agentsh/policy"
)

// record is what a log says about its session, and what it does not have. A session logs
// operations on files and signals if the policy decides audit, and programs unless
// log_allowed is false.
type record struct {
	guarded    bool // the session had git_guard
	ran        bool // a command was started
	programs   bool // an allowed program is logged
	files      bool // an allowed operation on a file is logged
	redirected []string
}

// event reads one event. The error says that the log has no names to learn from.
func (r *record) event(e wire.Event) error {
	if strings.HasPrefix(e.Path, "redacted:") || len(e.Argv) > 0 && strings.HasPrefix(e.Argv[0], "redacted:") {
		return errors.New("the log is redacted, and a policy needs names: record it without 'audit: {redact: true}'")
	}
	done := e.Decision == policy.Allow.String() || e.Decision == policy.Audit.String()
	switch {
	case e.Type == wire.EventSession:
		r.guarded = r.guarded || e.GitGuard
	case e.Type == wire.EventCommand && e.Exit != nil && e.Exit.Kind == wire.ExitExited:
		r.ran = true
	case e.Type == wire.EventExec && done:
		r.programs = true
	case e.Type == wire.EventFile && (done || e.Decision == policy.SoftDelete.String()):
		r.files = true
	case e.Type == wire.EventCommand && e.Decision == policy.Redirect.String():
		r.redirected = append(r.redirected, strings.Join(e.Argv, " "))
	}
	return nil
}

func (r *record) lacksPrograms() bool { return r.ran && !r.programs }
func (r *record) lacksFiles() bool    { return r.ran && !r.files }

// notes say what the written policy allows because the log does not have it.
func (l *learner) notes() []string {
	var out []string
	if l.record.lacksPrograms() {
		out = append(out, "the log has no programs that were allowed (log_allowed: false): every program is allowed")
	}
	if l.record.lacksFiles() {
		out = append(out, "the log has no operations on files that were allowed, because the session's policy did not decide audit: "+
			"the whole workspace and all signals within the session are allowed; a session under the policy observe logs them")
	}
	for _, command := range l.record.redirected {
		out = append(out, fmt.Sprintf("%s was redirected: write that rule yourself", command))
	}
	return out
}

// refused collects what was not simply allowed.
func (l *learner) refused(e wire.Event) {
	for _, q := range Requests(e) {
		switch q := q.(type) {
		case *policy.FileRequest:
			if e.Decision == policy.SoftDelete.String() {
				add(l.softened, q.Op.String(), q.Path)
				continue
			}
		case *policy.SignalRequest:
			if e.Decision == policy.Absorb.String() {
				add(l.absorbed, q.Target, SignalName(q.Signal))
				continue
			}
		}
		l.resolve.apply(q)
		l.denied = append(l.denied, q)
	}
}

// softRules are for the files that were moved to the trash.
func (l *learner) softRules() []learnedRule {
	var rules []learnedRule
	for _, op := range slices.Sorted(maps.Keys(l.softened)) {
		rule := learnedRule{Name: "trash-" + op, Operations: []string{op}, Decision: "soft_delete"}
		for _, file := range sorted(l.softened[op]) {
			rule.Paths = append(rule.Paths, l.abstract(file))
		}
		rules = append(rules, rule)
	}
	return rules
}

func (l *learner) absorbedRules() []learnedRule {
	var rules []learnedRule
	for _, target := range slices.Sorted(maps.Keys(l.absorbed)) {
		rules = append(rules, learnedRule{
			Name: "absorbed-" + target, Signals: sorted(l.absorbed[target]), Target: map[string]string{"type": target}, Decision: "absorb",
		})
	}
	return rules
}

// surroundings are the rules after those of single files. If the log has none of these,
// the workspace is allowed but for what was denied there.
func (l *learner) surroundings() []learnedRule {
	if !l.record.lacksFiles() {
		return surroundings
	}
	denied := map[string]map[string]bool{}
	for _, q := range l.denied {
		if f, ok := q.(*policy.FileRequest); ok {
			add(denied, f.Op.String(), f.Path)
		}
	}
	var rules []learnedRule
	for _, op := range slices.Sorted(maps.Keys(denied)) {
		rule := learnedRule{Name: "denied-" + op, Operations: []string{op}, Decision: "deny"}
		for _, file := range sorted(denied[op]) {
			rule.Paths = append(rule.Paths, l.abstract(file))
		}
		rules = append(rules, rule)
	}
	rules = append(rules, learnedRule{Name: "workspace", Paths: []string{"${WORKSPACE}/**"}, Operations: []string{"*"}, Decision: "allow"})
	return append(rules, surroundings[1:]...)
}
