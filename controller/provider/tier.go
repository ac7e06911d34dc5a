package provider

import (
	"fmt"
	"path"
	"slices"
	"sort"
	"strings"

	"agentsh/controller/harness"
	"agentsh/internal/secretfiles"
)

// Tier says how far a secret travels; the best tier is first.
type Tier uint8

// The tiers.
const (
	TierHost        Tier = iota + 1 // stays on the host
	TierPlaceholder                 // the sandbox has a placeholder, swapped at the endpoints
	TierToken                       // in the sandbox's environment
	TierFile                        // in a file of the sandbox
)

// String returns the tier as printed.
func (t Tier) String() string {
	return fmt.Sprintf("tier %d (%s)", uint8(t), [...]string{"", "host only", "placeholder", "token in the sandbox", "file in the sandbox"}[t])
}

// Secret is one secret of a harness without its value.
type Secret struct {
	Name string // variable, provider credential, or destination of a file
	Tier Tier
	At   harness.Origin
	Why  string
}

// Secrets returns the secrets of a harness with their tiers, by position. A
// variable that is no provider's credential counts as a secret by its name.
func Secrets(h *harness.Harness) []Secret {
	var out []Secret
	add := func(name string, tier Tier, at harness.Origin, why string) {
		out = append(out, Secret{name, tier, at, why})
	}
	hidden := map[string]bool{}
	for _, p := range h.Definitions {
		for name, c := range p.Credentials {
			if len(p.Endpoints) > 0 {
				for _, ref := range harness.References(c.V) {
					hidden[ref] = true
				}
				add(p.Name.V+"."+name, TierPlaceholder, c.At, "swapped only at "+hosts(p.Endpoints))
			} else {
				add(p.Name.V+"."+name, TierToken, c.At, "the provider names no endpoints, so no placeholder can be swapped")
			}
		}
	}
	for name, v := range h.Env.Runner {
		if secretName(name) || secretText(v.V) {
			add(name, TierHost, v.At, "only scripts on the host see env.runner")
		}
	}
	for name, v := range h.Env.Sandbox {
		if refs := harness.References(v.V); len(refs) == 1 && hidden[refs[0]] {
			continue // the placeholder of the provider
		}
		if secretName(name) || secretText(v.V) {
			add(name, TierToken, v.At, "every command in the sandbox sees env.sandbox")
		}
	}
	for _, v := range h.EnvFileVars {
		if secretName(v.V) {
			add(v.V, TierToken, v.At, "every command in the sandbox sees .env files")
		}
	}
	for _, f := range h.HostFiles {
		if path.Ext(f.Dest.V) != ".env" && (secretFile(f.Dest.V) || secretFile(f.Src.V) || secretText(f.Src.V)) {
			add(f.Dest.V, TierFile, f.Dest.At, "every command in the sandbox can read the file")
		}
	}
	sort.Slice(out, func(i, j int) bool {
		a, b := out[i], out[j]
		switch {
		case a.At.File != b.At.File:
			return a.At.File < b.At.File
		case a.At.Line != b.At.Line:
			return a.At.Line < b.At.Line
		case a.Name != b.Name:
			return a.Name < b.Name
		}
		return a.Tier < b.Tier
	})
	return out
}

func hosts(list harness.Texts) string {
	names := make([]string, len(list))
	for i, t := range list {
		names[i] = t.V
	}
	return strings.Join(names, ", ")
}

// Lint reports the tier of every secret: a note for the first two tiers, a
// warning for those that enter the sandbox.
func Lint(h *harness.Harness) harness.Problems {
	var ps harness.Problems
	for _, s := range Secrets(h) {
		p := harness.Problem{At: s.At, Severity: harness.Note, Rule: harness.RuleSecret,
			Message: fmt.Sprintf("secret %s: %s: %s", s.Name, s.Tier, s.Why)}
		if s.Tier >= TierToken {
			p.Severity = harness.Warning
			p.Hint = "use it on the host in pre_script, or let a provider with endpoints swap a placeholder"
		}
		ps = append(ps, p)
	}
	return ps
}

// secretWords are endings of the names of secret variables.
var secretWords = []string{
	"TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "API_KEY", "APIKEY", "ACCESS_KEY", "SECRET_KEY", "PRIVATE_KEY",
	"CREDENTIAL", "CREDENTIALS", "DSN", "PAT", "WEBHOOK_URL",
}

// secretName reports whether the name of a variable marks a secret.
func secretName(name string) bool {
	name = strings.ToUpper(name)
	for _, w := range secretWords {
		if name == w || strings.HasSuffix(name, "_"+w) {
			return true
		}
	}
	return false
}

// secretText reports whether a text expands a secret variable.
func secretText(s string) bool {
	for _, name := range harness.References(s) {
		if secretName(name) {
			return true
		}
	}
	return false
}

// secretFile reports whether the name of a file marks a secret.
func secretFile(name string) bool {
	base := strings.ToLower(path.Base(name))
	switch path.Ext(base) {
	case ".pem", ".key", ".p12", ".pfx", ".jks", ".keytab":
		return true
	}
	words := []string{"credential", "secret", "token", "service-account", "service_account", "kubeconfig"}
	for _, w := range slices.Concat(words, secretfiles.Keys, secretfiles.Names) {
		if strings.Contains(base, w) {
			return true
		}
	}
	return false
}
