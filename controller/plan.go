package controller

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"agentsh/controller/agenthost"
	"agentsh/controller/harness"
	"agentsh/controller/image"
	"agentsh/controller/provider"
	"agentsh/controller/runtime"
	"agentsh/controller/sandbox"
	"agentsh/internal/layout"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/policy/env"
)

// plan is the expanded harness of a run.
type plan struct {
	harness     *harness.Harness
	values      *harness.Expanded      // references to the host's variables are replaced
	files       []harness.File         // for the sandbox
	credentials []wire.Credential      // of the providers, with their first values
	helped      *helped                // those that programs print; nil: none
	agent       []agenthost.Credential // of the agent's program on the host
	rules       []byte                 // AGENTS.md for a repository without one; nil: none
	unpinned    bool                   // tools of MCP servers are about to be pinned
	spec        sandbox.Spec
	policy      *policy.Policy // that of spec
}

// scans reports whether the run has scans. They are enabled by default.
func (p plan) scans() bool { return p.harness.Security.Enabled.Or(true) }

// defaultRuntime is the runtime of a harness without one.
const defaultRuntime = "claude"

// loadHarness reads the harness with its layers and rejects settings that no
// step reads. It returns the backend of the run: b, or that which the harness names.
func loadHarness(
	file string, o harness.Options, images image.Config, b sandbox.Backend, to progress,
) (*harness.Harness, sandbox.Backend, error) {
	h, ps := harness.Load(file, o)
	if h != nil {
		ps = append(ps, h.Refusals()...)
		var err error
		if b, err = chooseBackend(b, h); err != nil && !ps.HasErrors() {
			return nil, b, err
		}
		if err := checkGiven(h, images); err != nil && !ps.HasErrors() {
			return nil, b, err
		}
		if _, pulls := b.(sandbox.Puller); pulls {
			if _, here := b.(sandbox.HostPuller); !here && slices.Contains(images.Given, h.Image.V) {
				return nil, b, badConfig("leave out --image: the backend gets the image by this name",
					"--image %s: backend %s makes no sandbox of a root file system of this host", h.Image.V, b.Name())
			}
			images = image.Config{Places: map[string]string{h.Image.V: ""}} // the engine has it
		}
		h.Fill(b.Name(), o.Cluster)
		ps = append(ps, h.NotOf(b.Name(), harness.Error)...)
		ps = imageProblems(ps, h, images)
	}
	for _, p := range ps {
		if p.Severity != harness.Error && !isError(ps, p) {
			to.warn("%s", warningText(p))
		}
	}
	if ps.HasErrors() {
		return nil, b, problemsFailure(ps)
	}
	return h, b, nil
}

// checkGiven refuses images of the command line of which the harness has none.
func checkGiven(h *harness.Harness, images image.Config) error {
	if len(images.Given) == 0 || slices.Contains(images.Given, h.Image.V) {
		return nil
	}
	name := images.Given[0]
	if h.Image.V == "" {
		return badConfig("write image: "+name+" in the harness, or leave out --image", "--image %s: the harness has no image", name)
	}
	return badConfig("write --image "+h.Image.V+"=PATH", "--image %s: the image of the harness is %s", name, h.Image.V)
}

// imageProblems replaces the note that an image has no meaning. There is none
// about an image with a path, and an error if the operator requires one.
func imageProblems(ps harness.Problems, h *harness.Harness, images image.Config) harness.Problems {
	if !h.Image.IsSet() || h.Image.V == "" {
		return ps
	}
	_, mapped := images.Places[h.Image.V]
	if mapped || images.Required {
		ps = slices.DeleteFunc(ps, func(p harness.Problem) bool { return p.Rule == harness.RuleNoEffect && p.At == h.Image.At })
	}
	if !mapped && images.Required {
		ps = append(ps, harness.Problem{
			At: h.Image.At, Severity: harness.Error, Rule: harness.RuleUnsupport,
			Message: "image " + h.Image.V + " has no root file system here, which --require-image demands",
			Hint:    harness.ImageHint(h.Image.V),
		})
	}
	return ps
}

// openImage finds the root file system of the harness's image. It must have git,
// which extracts the agent's work, and the program of the runtime.
func openImage(ctx context.Context, h *harness.Harness, prog program, images image.Config) (image.Root, error) {
	if _, mapped := images.Places[h.Image.V]; !mapped || h.Image.V == "" {
		return image.Root{}, nil
	}
	root, err := images.Open(ctx, h.Image.V)
	if err != nil {
		return root, badConfig("see 'Images' in doc/runs.md", "%s: %w", h.Image.At, err)
	}
	needed := []string{"git", prog.runtime.Traits().Program}
	if prog.outside {
		needed = needed[:1]
	}
	if len(prog.invocation.Argv) > 0 && !prog.outside {
		needed[1] = prog.invocation.Argv[0]
	}
	for _, name := range needed {
		if name == "" || strings.HasPrefix(name, layout.Sandbox+"/") || strings.Contains(name, "/") && !path.IsAbs(name) {
			continue // delivered to the sandbox or in the repository
		}
		if _, err := root.Find(name); err != nil {
			return root, badConfig("install it in the image, in a directory of PATH", "%s: image %s (%s): %w", h.Image.At, root.Name, root.Path, err)
		}
	}
	return root, nil
}

// pullImage finds the image of the sandbox's container, and gets it if it is missing.
func pullImage(ctx context.Context, r *run, from sandbox.Puller) error {
	h := r.plan.harness
	got, err := from.Pull(ctx, h.Image.V)
	if err != nil {
		if h.Image.IsSet() {
			err = fmt.Errorf("%s: %w", h.Image.At, err)
		}
		return fail(ExitSandbox, "", err)
	}
	r.plan.spec.Container = container(h.Container, got)
	r.plan.spec.Container.Cluster = cluster(h.Kubernetes)
	ways := &r.plan.spec.Container.Ways
	ways.To, ways.Names = r.plan.policy.Ways()
	r.result.Image = &ResultImage{Name: got.Name, Digest: got.Digest}
	return nil
}

// container is what the harness says of the container of a sandbox.
func container(c harness.Container, from sandbox.Image) sandbox.Container {
	out := sandbox.Container{
		Image: from, User: c.User.V, MemoryMB: int64(c.MemoryMB.V), CPUs: c.CPUs.V, PIDs: int64(c.PIDs.V), DiskMB: int64(c.DiskMB.V),
		Network: c.Network.V,
	}
	for _, m := range c.Mounts {
		out.Mounts = append(out.Mounts, sandbox.Mount{Source: m.Source.V, Target: m.Target.V, Writable: m.Writable.V})
	}
	return out
}

// isError reports whether one of the errors has the same problem as a warning.
func isError(ps harness.Problems, warning harness.Problem) bool {
	for _, p := range ps {
		if p.Severity == harness.Error && p.At == warning.At && p.Message == warning.Message {
			return true
		}
	}
	return false
}

func warningText(p harness.Problem) string {
	text := p.At.String() + ": " + p.Message
	if p.Hint != "" {
		text += " (" + p.Hint + ")"
	}
	return text
}

// expand replaces references to the host's variables, gives each credential a
// placeholder and reads the files that the harness delivers.
func expand(h *harness.Harness, lookup harness.Lookup) (plan, error) {
	p := plan{harness: h}
	var ps harness.Problems
	if p.values, ps = h.Expand(lookup); !ps.HasErrors() {
		p.credentials, p.agent, ps = placeholders(p.values, modelKeys(h))
	}
	if !ps.HasErrors() {
		ps = checkGateways(p.values, p.agent)
	}
	if !ps.HasErrors() {
		p.files, ps = p.values.Files()
	}
	if ps.HasErrors() {
		return p, problemsFailure(ps)
	}
	return p, nil
}

// modelKeys are the credentials that stay with an agent's program on the host.
func modelKeys(h *harness.Harness) []string {
	rt, err := runtime.Lookup(h.Runtime.Or(defaultRuntime))
	if out, can := rt.(runtime.Outsider); err == nil && can && h.Outside() {
		return out.Model().Keys
	}
	return nil
}

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
			if value == "" { // its helper prints it later; until then nobody can guess it
				value = rand.Text()
			}
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

// schema is the file of the JSON Schema of the agent's output; empty: none. Older
// harnesses name it in a variable of their scripts.
func (p plan) schema() string {
	if p.values.Schema.V != "" {
		return p.harness.Path(p.values.Schema)
	}
	return p.harness.Path(p.values.Runner["FULLSEND_OUTPUT_SCHEMA"])
}

// schemaVars name the schema to scripts.
func (p plan) schemaVars() []string {
	schema := p.schema()
	if schema == "" {
		return nil
	}
	return []string{"AGENTSH_OUTPUT_SCHEMA=" + schema, "FULLSEND_OUTPUT_SCHEMA=" + schema}
}

// defaultRules is the path of the organisation's AGENTS.md, relative to the
// root of the harness. The run adds it to a repository without an AGENTS.md, in
// the sandbox only.
const defaultRules = "defaults/AGENTS.md"

// maxRules bounds the organisation's AGENTS.md, in bytes.
const maxRules = 1 << 20

// readRules reads the organisation's AGENTS.md; nil if there is none.
func readRules(harnessRoot string) ([]byte, error) {
	root, err := os.OpenRoot(harnessRoot)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	info, err := root.Stat(filepath.FromSlash(defaultRules))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", defaultRules)
	}
	var data []byte
	if err == nil {
		data, err = readRulesFile(root)
	}
	if err != nil {
		return nil, badConfig("", "rules of the organisation: %w", err)
	}
	return data, nil
}

// readRulesFile returns the content of AGENTS.md. It is not nil for an empty
// file.
func readRulesFile(root *os.Root) ([]byte, error) {
	f, err := root.Open(filepath.FromSlash(defaultRules))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxRules+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxRules {
		return nil, fmt.Errorf("%s has more than %d bytes", defaultRules, maxRules)
	}
	return append([]byte{}, data...), nil
}

// checkScripts reports scripts of the harness that cannot be started.
func checkScripts(h *harness.Harness) []error {
	var all []error
	for _, script := range []harness.Text{h.PreScript, h.PostScript, h.ValidationLoop.Script} {
		if !script.IsSet() || script.V == "" {
			continue
		}
		name := h.Path(script)
		switch info, err := os.Stat(name); {
		case err != nil:
			all = append(all, badConfig("", "%s: %w", script.At, err))
		case !info.Mode().IsRegular() || unix.Access(name, unix.X_OK) != nil:
			all = append(all, badConfig("chmod +x "+shortName(name), "%s: %s is not an executable file", script.At, shortName(name)))
		}
	}
	return all
}
