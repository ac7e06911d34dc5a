package openshell

import (
	"fmt"
	"slices"
	"strings"

	"agentsh/controller/openshell"
	"agentsh/controller/sandbox"
	pb "agentsh/internal/openshellpb"
	"agentsh/policy"
	"agentsh/policy/syntax"
)

// rendered is the policy of a run as one of OpenShell's.
func rendered(s sandbox.Spec, without []string) (*pb.SandboxPolicy, error) {
	r, err := render(s, without)
	if err != nil {
		return nil, err
	}
	return message(r.Policy), nil
}

// What agentsh itself needs in a sandbox: the tree of the run, its own files (see [own]), and programs. OpenShell confines agentsh as it
// confines commands. What commands may do there is narrower: agentsh gives each of them a Landlock domain of its own.
var (
	ownWrites = []string{"/dev/null", "/sandbox", "/tmp", "/var/tmp"}
	ownReads  = []string{"/bin", "/dev/urandom", "/etc", "/lib", "/proc", "/usr"}
)

// widen adds what agentsh needs to a rendered policy. A path within a tree that has its rights is left out: with hard_requirement a
// sandbox does not start if one is missing, and directories of a run are.
func widen(p *openshell.Policy) {
	p.ReadWrite = outermost(append(p.ReadWrite, ownWrites...))
	covered := within(p.ReadWrite)
	p.ReadOnly = outermost(slices.DeleteFunc(append(p.ReadOnly, ownReads...), covered))
}

// outermost are the trees that lie in no other one, sorted.
func outermost(trees []string) []string {
	slices.Sort(trees)
	var out []string
	for _, t := range trees { // a tree comes before what is in it
		if !within(out)(t) {
			out = append(out, t)
		}
	}
	return out
}

// within reports whether a path is one of some trees, or lies in one.
func within(trees []string) func(string) bool {
	return func(name string) bool {
		return slices.ContainsFunc(trees, func(t string) bool { return name == t || strings.HasPrefix(name, strings.TrimSuffix(t, "/")+"/") })
	}
}

// render renders the policy of a run.
func render(s sandbox.Spec, without []string) (*openshell.Rendered, error) {
	files := map[string][]byte{}
	for _, f := range s.Policy {
		files[f.Name] = f.Data
	}
	main := policy.Source{Name: s.Policy[0].Name, Data: s.Policy[0].Data}
	p, err := syntax.Load(main, syntax.Options{Vars: s.Vars, ReadFile: func(name string) ([]byte, error) {
		data, ok := files[name]
		if !ok {
			return nil, fmt.Errorf("%s is not part of the policy", name)
		}
		return data, nil
	}})
	if err != nil {
		return nil, err
	}
	r, problems := openshell.Render(p, without)
	if len(problems) > 0 {
		words, whole := openshell.Needed(p, without)
		way := "write openshell: {without: [" + strings.Join(words, ", ") + "]} in agentctl.yaml to give all of it up"
		if !whole {
			way = "change the rules that name nothing to give up; for the rest " + way
		}
		return nil, fmt.Errorf("OpenShell cannot hold the policy; %s\n%w", way, problems)
	}
	widen(r.Policy)
	return r, nil
}

// message is a policy as the gateway takes it.
func message(p *openshell.Policy) *pb.SandboxPolicy {
	out := &pb.SandboxPolicy{
		Version:         1,
		Filesystem:      &pb.FilesystemPolicy{IncludeWorkdir: p.Workdir, ReadOnly: p.ReadOnly, ReadWrite: p.ReadWrite},
		Landlock:        &pb.LandlockPolicy{Compatibility: "hard_requirement"}, // otherwise it would run without Landlock
		NetworkPolicies: map[string]*pb.NetworkPolicyRule{},
	}
	for _, a := range p.Network {
		rule := &pb.NetworkPolicyRule{Name: a.Name}
		for _, b := range a.Binaries {
			rule.Binaries = append(rule.Binaries, &pb.NetworkBinary{Path: b})
		}
		for _, e := range a.Endpoints {
			rule.Endpoints = append(rule.Endpoints, endpoint(e))
		}
		out.NetworkPolicies[a.Name] = rule
	}
	return out
}

func endpoint(e openshell.Endpoint) *pb.NetworkEndpoint {
	out := &pb.NetworkEndpoint{Host: e.Host, AllowedIps: e.Networks}
	for _, n := range e.Ports {
		out.Ports = append(out.Ports, uint32(n)) //nolint:gosec // a port
	}
	for _, q := range e.Requests {
		for _, m := range methods(q) {
			out.Rules = append(out.Rules, &pb.L7Rule{Allow: &pb.L7Allow{Method: m, Path: q.Path}})
		}
	}
	for _, q := range e.Denied {
		for _, m := range methods(q) {
			out.DenyRules = append(out.DenyRules, &pb.L7DenyRule{Method: m, Path: q.Path})
		}
	}
	if len(out.Rules) > 0 {
		out.Protocol, out.Enforcement = "rest", pb.NetworkEnforcementMode_NETWORK_ENFORCEMENT_MODE_ENFORCE
	}
	return out
}

func methods(q openshell.Request) []string {
	if len(q.Methods) == 0 {
		return []string{"*"}
	}
	return q.Methods
}
