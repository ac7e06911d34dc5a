package controller

import (
	"context"
	"crypto/rand"
	"fmt"

	"agentsh/controller/harness"
	"agentsh/controller/provider"
	"agentsh/internal/wire"
	"agentsh/policy/env"
)

// placeholderPrefix begins every placeholder, so that people know what they see.
const placeholderPrefix = "agentsh-placeholder-"

// credentials gives the sandbox a placeholder in the place of each credential of
// the harness's providers, as a variable of its name. The values go to the
// supervisor alone, which swaps them at the provider's endpoints.
func (r *run) credentials(x *harness.Expanded) harness.Problems {
	var ps harness.Problems
	refuse := func(at harness.Origin, format string, args ...any) {
		ps = append(ps, harness.Problem{At: at, Severity: harness.Error, Rule: harness.RuleProvider, Message: fmt.Sprintf(format, args...)})
	}
	for _, d := range provider.Wanted(x) {
		source := x.Credentials[d.Name]
		if len(d.Endpoints) == 0 && len(d.Credentials) > 0 {
			refuse(source.At, "the provider %s names no endpoints, so its credentials could be used nowhere", d.Name)
			continue
		}
		for name, value := range d.Credentials {
			at := source.Credentials[name].At
			_, taken := x.Sandbox[name]
			switch {
			case !env.ValidName(name) || env.Reserved(name):
				refuse(at, "credentials.%s: the sandbox gets it as a variable, and this is no name for one", name)
				continue
			case len(value) < wire.ShortestCredential:
				refuse(at, "credentials.%s: the value has less than %d bytes, and cannot be told from other text", name, wire.ShortestCredential)
				continue
			case taken:
				refuse(at, "credentials.%s: env.sandbox or another provider sets the variable too", name)
				continue
			}
			c := wire.Credential{
				Name: d.Name + "." + name, Placeholder: placeholderPrefix + rand.Text(), Value: value,
				Endpoints: d.Endpoints, Header: d.Header, Query: d.Query, Path: d.Path,
			}
			r.secrets = append(r.secrets, c)
			if x.Sandbox == nil {
				x.Sandbox = harness.Map{}
			}
			x.Sandbox[name] = harness.Text{V: c.Placeholder, At: at}
		}
	}
	return ps.Sorted()
}

// providers has the local gateway know what this run uses: names and digests.
func (r *run) providers(ctx context.Context) error {
	gateway, err := provider.OpenLocal(r.o.Gateway)
	if err != nil {
		return err
	}
	done, err := provider.Reconcile(ctx, gateway, provider.Wanted(r.x))
	for _, c := range done {
		r.tell(Update{Kind: UpdateOutput, Stream: "stdout", Text: "provider " + c.Definition.Name + ": " + c.Action.String()})
	}
	return err
}
