package openshell

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"agentsh/controller/sandbox"
	pb "agentsh/internal/openshellpb"
)

// bindable reports whether the policy of a sandbox can say where its credentials are used.
func (b *Backend) bindable(held *pb.SandboxPolicy, s sandbox.Spec) error {
	list := grouped(s.Credentials)
	for i := range list {
		set, stays := b.cfg.Providers[list[i].of]
		list[i].name, list[i].bound = cmp.Or(set.Name, list[i].of), !stays
	}
	return bind(held, list)
}

// bind has the endpoints of a policy say which provider's credentials may be put into requests there. Each provider needs one
// at least, and an endpoint has one provider.
func bind(p *pb.SandboxPolicy, list []attached) error {
	for _, a := range list {
		if !a.bound {
			continue
		}
		for _, want := range a.credentials[0].Endpoints { // all credentials of a provider have the same
			host, port := destination(want)
			if err := a.bindAt(p, host, port); err != nil {
				return err
			}
		}
	}
	return nil
}

// destination are the host and the port of an endpoint of a credential.
func destination(endpoint string) (host string, port uint32) {
	host, number, has := strings.Cut(endpoint, ":")
	if n, err := strconv.ParseUint(number, 10, 16); has && err == nil {
		return host, uint32(n)
	}
	return host, 443
}

// bindAt binds the endpoints of a policy that lie within an endpoint of the provider.
func (a attached) bindAt(p *pb.SandboxPolicy, host string, port uint32) error {
	found := false
	for _, rule := range p.GetNetworkPolicies() {
		var all []*pb.NetworkEndpoint
		for _, e := range rule.GetEndpoints() {
			if !hostWithin(e.GetHost(), host) || !slices.Contains(e.GetPorts(), port) {
				all = append(all, e)
				continue
			}
			found = true
			if len(e.GetPorts()) > 1 { // a binding is of all ports of an endpoint
				rest := proto.CloneOf(e)
				rest.Ports = slices.DeleteFunc(rest.Ports, func(n uint32) bool { return n == port })
				e = proto.CloneOf(e)
				e.Ports = []uint32{port}
				all = append(all, rest)
			}
			if other := e.GetCredentialBinding().GetProvider(); other != "" && other != a.name {
				return fmt.Errorf("providers %s and another have credentials for %s:%d: OpenShell takes one provider for an endpoint: "+
					"put their credentials into one provider, or leave one out", a.of, host, port)
			}
			e.CredentialBinding = &pb.NetworkCredentialBinding{Provider: a.name}
			if e.Protocol == "" { // only requests that OpenShell reads get credentials
				e.Protocol, e.Enforcement = "rest", pb.NetworkEnforcementMode_NETWORK_ENFORCEMENT_MODE_ENFORCE
				e.Rules = []*pb.L7Rule{{Allow: &pb.L7Allow{Method: "*", Path: "/**"}}}
			}
			all = append(all, e)
		}
		rule.Endpoints = all
	}
	if !found {
		return fmt.Errorf("provider %s: no rule of network_rules allows %s:%d, so its credentials cannot be used there: add a rule with "+
			"domains: [%s] and ports: [%d], or take the endpoint out of the provider", a.of, host, port, host, port)
	}
	return nil
}

// hostWithin reports whether the host of a rendered endpoint, a name or **.NAME, lies within that of a credential, a name or *.NAME.
func hostWithin(rendered, of string) bool {
	rendered, of = strings.ToLower(rendered), strings.ToLower(of)
	tree, wild := strings.CutPrefix(of, "*.")
	if !wild {
		return rendered == of
	}
	return strings.HasSuffix(strings.TrimPrefix(rendered, "**"), "."+tree)
}

const (
	placeholderTime = 30 * time.Second
	// placeholderPrefix begins the placeholders of OpenShell: crates/openshell-core/src/secrets.rs of github.com/NVIDIA/OpenShell.
	placeholderPrefix = "openshell:resolve:env:"
	maxEnvironment    = 1 << 20 // bytes
)

// Placeholders implements [sandbox.Swapper]. OpenShell gives them to each exec as variables.
func (b *Backend) Placeholders(ctx context.Context, s sandbox.Spec) (map[string]string, error) {
	if len(s.Credentials) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, placeholderTime)
	defer cancel()
	var vars map[string]string
	err := b.gateway.again(ctx, "read the placeholders of OpenShell", func(ctx context.Context) (err error) {
		vars, err = b.variables(ctx, nameOf(s.RunID))
		return err
	})
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, c := range s.Credentials {
		switch v := vars[variable(c)]; {
		case v != "" && v == c.Value:
			return nil, &sandbox.End{
				Kind: sandbox.EndRefused, Text: "OpenShell shows the value of " + c.Name + " in the sandbox, and no placeholder",
				Hint: "look at the provider and its profile with 'openshell provider profile export'",
			}
		case !strings.HasPrefix(v, placeholderPrefix):
			return nil, &sandbox.End{
				Kind: sandbox.EndRefused, Text: "OpenShell gives the sandbox no placeholder for " + c.Name,
				Hint: "does its provider at the gateway have the credential " + variable(c) + ", and has it not expired?",
			}
		default:
			out[c.Placeholder] = v
		}
	}
	return out, nil
}

// variables are those of an exec.
func (b *Backend) variables(ctx context.Context, name string) (map[string]string, error) {
	calls, err := b.gateway.client.ExecSandboxInteractive(ctx)
	if err == nil {
		err = calls.Send(&pb.ExecSandboxInput{Payload: &pb.ExecSandboxInput_Start{Start: &pb.ExecSandboxRequest{
			Sandbox: name, Command: []string{"env", "-0"}, NoLoginShell: true, WorkspaceScope: b.gateway.scope(),
		}}})
	}
	if err == nil {
		err = calls.CloseSend()
	}
	var text []byte
	for err == nil {
		var e *pb.ExecSandboxEvent
		if e, err = calls.Recv(); err == nil {
			text = append(text, e.GetStdout().GetData()...)
		}
		if len(text) > maxEnvironment {
			return nil, fmt.Errorf("the environment of an exec has more than %d bytes", maxEnvironment)
		}
	}
	if !errors.Is(err, io.EOF) {
		return nil, err
	}
	vars := map[string]string{}
	for v := range strings.SplitSeq(string(text), "\x00") {
		name, value, _ := strings.Cut(v, "=")
		vars[name] = value
	}
	return vars, nil
}
