package controller

import (
	"crypto/rand"
	"fmt"
	"slices"

	"agentsh/controller/agenthost"
	"agentsh/controller/harness"
	"agentsh/controller/provider"
	"agentsh/internal/wire"
	"agentsh/policy/env"
)

// placeholderPrefix is the prefix of every placeholder, so that people
// recognise it.
const placeholderPrefix = "agentsh-placeholder-"

// placeholders makes a placeholder for each credential of the harness's
// providers, and adds it to env.sandbox under the credential's name. Only the
// supervisor receives the values. It replaces placeholders in requests to the
// provider's endpoints. References of the sandbox to the credential's variable
// give the placeholder, too. The credentials that have one of the names in agent are those of the
// agent's program on the host: the sandbox has neither them nor their placeholders.
func placeholders(x *harness.Expanded, agent []string) (out []wire.Credential, own []agenthost.Credential, ps harness.Problems) {
	hidden := map[string]string{}
	refuse := func(at harness.Origin, format string, args ...any) {
		ps = append(ps, harness.Problem{At: at, Severity: harness.Error, Rule: harness.RuleProvider, Message: fmt.Sprintf(format, args...)})
	}
	for _, d := range provider.Wanted(x) {
		source := x.Credentials[d.Name]
		if len(d.Endpoints) == 0 && len(d.Credentials) > 0 {
			refuse(source.At, "the provider %s names no endpoints, so its credentials cannot be used", d.Name)
			continue
		}
		for name, value := range d.Credentials {
			at := source.Credentials[name].At
			from := harness.References(x.Definitions[d.Name].Credentials[name].V)
			set, taken := x.Sandbox[name]
			taken = taken && set.V != value
			switch {
			case !env.ValidName(name) || env.Reserved(name):
				refuse(at, "credentials.%s: the sandbox gets it as a variable, and this is not a valid name", name)
				continue
			case len(value) < wire.ShortestCredential:
				refuse(at, "credentials.%s: the value has less than %d bytes, and cannot be distinguished from other text", name,
					wire.ShortestCredential)
				continue
			case taken:
				refuse(at, "credentials.%s: env.sandbox or another provider sets the variable too", name)
				continue
			}
			c := wire.Credential{
				Name: d.Name + "." + name, Placeholder: placeholderPrefix + rand.Text(), Value: value,
				Endpoints: d.Endpoints, Header: d.Header, Query: d.Query, Path: d.Path,
			}
			if len(from) == 1 {
				hidden[from[0]] = c.Placeholder
			}
			if slices.Contains(agent, name) {
				if _, passed := x.Passed[name]; passed {
					refuse(at, "credentials.%s: env_passthrough has it too: the agent's program gets the provider's", name)
					continue
				}
				own = append(own, agenthost.Credential{Credential: c, Variable: name})
				continue
			}
			out = append(out, c)
			if x.Sandbox == nil {
				x.Sandbox = harness.Map{}
			}
			x.Sandbox[name] = harness.Text{V: c.Placeholder, At: at}
		}
	}
	x.Hide(hidden)
	return out, own, ps.Sorted()
}
