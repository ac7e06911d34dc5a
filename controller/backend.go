package controller

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"agentsh/controller/harness"
	"agentsh/controller/sandbox"
	"agentsh/internal/layout"
	"agentsh/internal/project"
	"agentsh/internal/statedir"
	"agentsh/internal/wire"
)

// hinted is an error that says how to fix it.
type hinted interface {
	error
	Remedy() string
}

// chooseBackend returns the backend that the harness names, unless the operator named one.
func chooseBackend(b sandbox.Backend, h *harness.Harness) (sandbox.Backend, error) {
	c, is := b.(sandbox.Chooser)
	if !is {
		return b, nil
	}
	key := ""
	if h.ConnectKey.IsSet() {
		key = h.Path(h.ConnectKey)
	}
	chosen, err := c.Choose(h.Backend.V, h.Connect.V, key)
	if err != nil {
		hint := "see doc/remote.md"
		if known := hinted(nil); errors.As(err, &known) && known.Remedy() != "" {
			hint = known.Remedy()
		}
		for _, of := range []harness.Text{h.Backend, h.Connect, h.ConnectKey} {
			if of.IsSet() {
				return b, badConfig(hint, "%s: backend: %w", of.At, err)
			}
		}
		return b, badConfig(hint, "%w", err)
	}
	return chosen, nil
}

// withSpec checks the policy of a run and adds it and the specification of the
// sandbox to the plan.
func (p plan) withSpec(prog program, repoDir, runID string, keep time.Duration) (plan, error) {
	vars := policyVars(repoDir)
	rules, err := loadPolicy(p.harness.Path(p.harness.Policy), newRunRules(p, prog, repoDir), vars)
	if err != nil {
		return p, err
	}
	if !prog.outside {
		if err := checkEnv(prog, rules, p.harness.Path(p.harness.Policy)); err != nil {
			return p, err
		}
	}
	p.policy = rules
	p.spec = sandbox.Spec{
		RunID: runID, Policy: sources(rules), Vars: vars, EnvDir: layout.EnvDir, Home: layout.Home,
		Degraded: settings(p.harness.Degraded), Require: settings(p.harness.Require),
		Program: prog.ownProgram(p), Credentials: p.credentials, Keep: keep,
	}
	return p, nil
}

// settings are the entries of a list of the harness, with their places.
func settings(list harness.Texts) []wire.Setting {
	var out []wire.Setting
	for _, s := range list {
		out = append(out, wire.Setting{Name: s.V, At: s.At.String()})
	}
	return out
}

// needBytes is the disk space that a run needs besides the repository, in
// bytes.
const needBytes = 32 << 20

// checkRoom checks the disk of the results, and returns the disk space that the
// sandbox needs, in bytes. The sandbox and the host each store a copy of the
// repository.
func checkRoom(ctx context.Context, c checkout, to *results) (need int64, err error) {
	var size int64
	switch {
	case c.shared != nil:
		size = c.shared.size
	case c.target.Dir != "":
		if size, err = c.target.Size(ctx); err != nil {
			return 0, err
		}
	}
	if to == nil { // nothing is taken out
		return needBytes + 2*size, nil
	}
	if err := statedir.CheckRoom(filepath.Dir(to.out), needBytes); err != nil {
		return 0, fail(ExitSandbox, "free some disk space, or name another directory with --out", err)
	}
	return needBytes + 2*size, nil
}

// checkBackend checks that the backend can create the sandbox of a harness.
func checkBackend(ctx context.Context, b sandbox.Backend, h *harness.Harness, s sandbox.Spec) error {
	if err := b.Check(ctx, s); err != nil {
		hint := ""
		if errors.Is(err, fs.ErrNotExist) {
			hint = "install agentsh beside agentctl, or name it with --agentsh"
		}
		code := ExitSandbox
		if of, can := b.(sandbox.SpecChecker); can && of.CheckSpec(s) != nil {
			code = ExitConfiguration
		}
		return fail(code, hint, ofBackend(b.Name(), h, err))
	}
	return nil
}

// ofBackend says that a backend refuses a sandbox, with the place of the key that is wrong.
func ofBackend(name string, h *harness.Harness, err error) error {
	if name != "" {
		err = fmt.Errorf("backend %s: %w", name, err)
	}
	if key := (*sandbox.KeyError)(nil); errors.As(err, &key) {
		if at := h.Container.At(key.Key); !at.IsZero() {
			return fmt.Errorf("%s: %w", at, err)
		}
	}
	return err
}

// operatorIdentity is what git has on this host for the user who starts a run.
func operatorIdentity(lookup harness.Lookup, repo string) (wire.Identity, error) {
	getenv := func(name string) string {
		value, _ := lookup(name)
		return value
	}
	home := getenv("HOME")
	if repo, err := filepath.Abs(repo); err == nil && filepath.IsAbs(home) {
		return project.Identity(home, repo, getenv)
	}
	return wire.Identity{}, nil
}

// cluster is what the harness says of the pod of a sandbox.
func cluster(k harness.Kubernetes) sandbox.Cluster {
	seconds := func(v harness.Value[int]) time.Duration { return time.Duration(v.V) * time.Second }
	out := sandbox.Cluster{
		Program:     sandbox.ProgramImage{Image: k.AgentshImage.V, PullPolicy: k.PullPolicy.V},
		PullSecrets: words(k.PullSecrets),
		Account:     k.ServiceAccount.V,
		Place: sandbox.Scheduling{
			RuntimeClass: k.RuntimeClass.V, PriorityClass: k.PriorityClass.V, NodeSelector: values(k.NodeSelector),
		},
		Requests:   sandbox.Resources{MemoryMB: int64(k.RequestMemory.V), CPUs: k.RequestCPUs.V},
		FUSEDevice: k.FUSEDevice.V, Seccomp: k.Seccomp.V, AppArmor: k.AppArmor.V,
		Shared: !k.UserNamespace.Or(true), Open: !k.NetworkPolicy.Or(true), DNS: k.DNSNamespace.V,
		Labels: values(k.Labels), Annotations: values(k.Annotations),
		Managed: sandbox.Managed{Sandbox: k.AgentSandbox.V, WarmPool: k.WarmPool.V},
		Times:   sandbox.ClusterTimes{Start: seconds(k.StartSeconds), Most: seconds(k.MaxSeconds)},
	}
	for _, t := range k.Tolerations {
		out.Place.Tolerations = append(out.Place.Tolerations, sandbox.Toleration{
			Key: t.Key.V, Operator: t.Operator.V, Value: t.Value.V, Effect: t.Effect.V, Seconds: int64(t.Seconds.V),
		})
	}
	return out
}

func words(list harness.Texts) []string {
	var out []string
	for _, w := range list {
		out = append(out, w.V)
	}
	return out
}

func values(m harness.Map) map[string]string {
	out := make(map[string]string, len(m))
	for name, v := range m {
		out[name] = v.V
	}
	return out
}

// checkRequire rejects a supervisor that does not know require of a harness, and so has not
// proven it.
func checkRequire(h *harness.Harness, v wire.Version) error {
	if len(h.Require) == 0 || v.Minor >= 1 {
		return nil
	}
	return fmt.Errorf("%s: require: this agentsh does not know it: use the version of agentctl", h.Require[0].At)
}

// Guarantee is a group of rules and who held it in a sandbox.
type Guarantee struct {
	Group  string `json:"group"`
	HeldBy string `json:"held_by"`
	How    string `json:"how,omitempty"`
}

// Values of [Guarantee.HeldBy] besides the names of places.
const (
	heldByAgentsh = "agentsh"
	notHeld       = "not held"
)

// maxGuarantees bounds the groups that a supervisor names.
const maxGuarantees = 100

// guarantees says for each group of rules who holds it: the supervisor, the place of the
// sandbox, both or nobody.
func guarantees(hello wire.Hello, b sandbox.Backend) []Guarantee {
	place := map[string]string{}
	if h, is := b.(sandbox.Holder); is {
		place = maps.Clone(h.Holds())
	}
	var out []Guarantee
	for _, g := range hello.Guarantees[:min(len(hello.Guarantees), maxGuarantees)] {
		who := place[g.Group]
		delete(place, g.Group)
		said := Guarantee{Group: short(g.Group), HeldBy: notHeld, How: short(g.How)}
		switch {
		case g.Held && who != "":
			said.HeldBy = heldByAgentsh + " and " + who
		case g.Held:
			said.HeldBy = heldByAgentsh
		case who != "":
			said.HeldBy = who
			said.How = "by agentsh only this: " + said.How
		}
		out = append(out, said)
	}
	for _, group := range slices.Sorted(maps.Keys(place)) { // the supervisor does not know them
		out = append(out, Guarantee{Group: group, HeldBy: place[group]})
	}
	return out
}
