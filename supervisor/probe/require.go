package probe

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"agentsh/internal/strictyaml"
)

// Setting is an entry of degraded or require, with where it was given.
type Setting struct {
	Name string
	At   string // file:line:column, or the flag
}

// Session is what requirements ask of a session beside primitives.
type Session struct {
	Governed      bool   // it has a workspace under file policy
	Unwatched     string // why changes by others in a workspace cannot be seen; empty: they can
	SharedNetwork bool   // it shares the network of this machine
	Untraced      bool   // the trace engine may not be used
}

// requirement is what a name of require needs.
type requirement struct {
	primitives []string            // each is tried
	check      func(Session) error // nil: every session is accepted
	guarantee  bool                // any mechanism may hold it: the primitives are those of [Session.Holders]
	mechanism  string              // of degraded: a session without it does not have what is required
}

// RequireEngine begins the requirements of an engine. Its name follows.
const RequireEngine = "engine_"

// requirements are the names of require. doc/detect.md explains them.
var requirements = map[string]requirement{
	guaranteeFiles:   {guarantee: true},
	guaranteeSignals: {guarantee: true},
	guaranteeSockets: {guarantee: true},
	// A session that requires an engine uses no other.
	RequireEngine + "listener": {primitives: []string{"seccomp_notify"}},
	RequireEngine + "trace":    {primitives: []string{"seccomp_trace"}},

	"exec_verify":       {primitives: []string{primitiveEngine, "ptrace", "proc_mem"}},
	"env_inject_nested": {primitives: []string{primitiveEngine, "ptrace", "proc_mem"}},
	"file_governed":     {primitives: []string{"mount_namespace", "fuse"}, check: governsFiles, mechanism: FileServer},
	"fuse_passthrough":  {primitives: []string{"fuse", "fuse_passthrough"}, check: governsFiles, mechanism: FileServer},
	"host_edits":        {primitives: []string{"mount_namespace", "fuse", "fanotify"}, check: watchesFiles, mechanism: FileServer},
	"mount_namespace":   {primitives: []string{"mount_namespace", "mount_api"}, mechanism: Namespaces},
	"pid_namespace":     {primitives: []string{"pid_namespace"}, mechanism: Namespaces},
	"net_namespace":     {primitives: []string{"net_namespace"}, check: requireNetwork, mechanism: Namespaces},
	"landlock":          {primitives: []string{"landlock"}},
	"landlock_scopes":   {primitives: []string{"landlock_scopes"}},
	"cgroup":            {primitives: []string{"cgroup"}},
}

// Requirements are the names that require may have, sorted.
func Requirements() []string { return slices.Sorted(maps.Keys(requirements)) }

// Primitives are the primitives that a requirement tries in every session.
func Primitives(requirement string) []string { return requirements[requirement].primitives }

// required are the primitives that prove a requirement in such a session: for a guarantee
// the first mechanism that holds it.
func (s Session) required(name string, missing Missing) ([]string, error) {
	want := requirements[name]
	if !want.guarantee {
		return want.primitives, nil
	}
	holders := strings.Fields(s.Holders(missing)[name])
	if len(holders) == 0 {
		return nil, errors.New("no mechanism holds it in this session")
	}
	return holders[:1], nil
}

func governsFiles(s Session) error {
	if !s.Governed {
		return errors.New("the session has no workspace under file policy")
	}
	return nil
}

func watchesFiles(s Session) error {
	if s.Unwatched != "" {
		return errors.New(s.Unwatched)
	}
	return governsFiles(s)
}

func requireNetwork(s Session) error {
	if s.SharedNetwork {
		return errors.New("the session shares the network of this machine")
	}
	return nil
}

// instead names the guarantees that hold although the mechanism that is required is
// missing.
func (s Session) instead(requirement string, missing Missing) string {
	if !s.holds(requirement, missing) {
		return ""
	}
	holders := s.Holders(missing)
	return fmt.Sprintf("\n  its guarantees are held by %s and %s: require: [%s, %s] asks for these, whatever holds them",
		holders[guaranteeSignals], holders[guaranteeSockets], guaranteeSignals, guaranteeSockets)
}

// Require tries what the operator requires of a session that runs without the missing
// mechanisms. The error has a line for each requirement that is not proven, or not known.
func Require(require []Setting, s Session, missing Missing) error {
	var problems []string
	tried := map[string]error{}
	for _, r := range require {
		want, known := requirements[r.Name]
		if !known {
			problems = append(problems, fmt.Sprintf("%s: require has no requirement %q (%s)", r.At, r.Name,
				strictyaml.DidYouMean(r.Name, Requirements())))
			continue
		}
		if want.check != nil {
			if err := want.check(s); err != nil {
				problems = append(problems, fmt.Sprintf("%s: require %s: %v", r.At, r.Name, err))
				continue
			}
		}
		primitives, err := s.required(r.Name, missing)
		if err != nil {
			problems = append(problems, fmt.Sprintf("%s: require %s: %v", r.At, r.Name, err))
			continue
		}
		if why := missing[want.mechanism]; why != nil {
			problems = append(problems, fmt.Sprintf("%s: require %s: not proven here: %v", r.At, r.Name, why))
			continue
		}
		for _, name := range primitives {
			err, done := tried[name]
			if !done {
				err = Try(name)
				tried[name] = err
			}
			if err != nil {
				problems = append(problems, fmt.Sprintf("%s: require %s: not proven here: %v%s", r.At, r.Name, err, s.instead(r.Name, missing)))
				break
			}
		}
	}
	if len(problems) > 0 {
		problems = append(problems, "  to go on without: take the name out of require, at the place that is named")
		return errors.New(strings.Join(problems, "\n"))
	}
	return nil
}
