package openshell

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"agentsh/controller/provider"
	"agentsh/controller/sandbox"
	pb "agentsh/internal/openshellpb"
)

// Provider is the provider of the gateway that has the credentials of a provider of harnesses. It stays after runs.
type Provider struct {
	Name      string // at the gateway
	Type      string // id of its profile at the gateway; empty with [Attach]
	Reconcile string // one of [Reconciles]
}

// Values of [Provider.Reconcile].
const (
	Attach = "attach" // it is there, and never changed
	Create = "create" // it is made if it is missing, and never changed
	Update = "update" // it is made, and gets the values of the run if these are others
)

// Reconciles are the values of [Provider.Reconcile].
var Reconciles = []string{Attach, Create, Update}

// Check refuses a setting that says nothing.
func (s Provider) Check(of string) error {
	switch {
	case s.Name == "":
		return fmt.Errorf("the provider %s has no name: write the name of the provider at the gateway", of)
	case !slices.Contains(Reconciles, s.Reconcile):
		return fmt.Errorf("the provider %s: reconcile is one of %s", of, strings.Join(Reconciles, ", "))
	case (s.Type == "") != (s.Reconcile == Attach):
		return fmt.Errorf("the provider %s: write type with reconcile: create or update, and only there", of)
	}
	return nil
}

// kept finds, makes or updates a provider that stays.
func (b *Backend) kept(ctx context.Context, a *attached, set Provider) error {
	a.name = set.Name
	k := keeper{b: b, set: set, credentials: a.credentialNames()}
	if set.Reconcile != Attach {
		var err error
		if k.local, err = provider.OpenLocal(b.keptDir()); err != nil {
			return err
		}
		wanted := provider.Definition{Name: set.Name, Type: set.Type, Credentials: a.values()}
		if _, err := provider.Reconcile(ctx, &k, []provider.Definition{wanted}); err != nil {
			return err
		}
	}
	there, err := k.find(ctx)
	if err != nil {
		return err
	}
	for _, name := range a.credentialNames() {
		if _, has := there.GetCredentials()[name]; !has {
			return &sandbox.End{
				Kind: sandbox.EndRefused, Text: fmt.Sprintf("the provider %s at the gateway has no credential %s", set.Name, name),
				Hint: "'openshell provider update " + set.Name + " --credential " + name + "' takes its value from the environment",
			}
		}
	}
	a.bound, err = b.endpointless(ctx, there)
	return err
}

// credentialNames are the variables of the credentials.
func (a attached) credentialNames() (out []string) {
	for _, c := range a.credentials {
		out = append(out, variable(c))
	}
	return out
}

// keptDir has names and keyed digests of the providers that this host made or updated at this workspace of the gateway.
func (b *Backend) keptDir() string {
	sum := sha256.Sum256([]byte(b.at()))
	return filepath.Join(b.cfg.State.OpenShell(), "providers-"+hex.EncodeToString(sum[:8]))
}

// endpointless reports whether the profile of a provider leaves it to policies where credentials are used.
func (b *Backend) endpointless(ctx context.Context, p *pb.Provider) (yes bool, err error) {
	g := b.gateway
	ask := &pb.GetProviderProfileRequest{Id: p.GetType()}
	if p.GetProfileWorkspace() != "" {
		ask.WorkspaceScope = g.scope()
	}
	err = g.again(ctx, "get the profile "+p.GetType(), func(ctx context.Context) error {
		r, err := g.client.GetProviderProfile(ctx, ask)
		yes = len(r.GetProfile().GetEndpoints()) == 0
		return err
	})
	return yes, err
}

// keeper is the gateway as one provider that stays needs it: it implements [provider.Gateway]. What the gateway has of values is
// unknown, so that a digest counts only for the version of the provider that this host wrote.
type keeper struct {
	b           *Backend
	set         Provider
	credentials []string
	local       *provider.Local
	there       *pb.Provider // nil: none
}

// find is the provider.
func (k *keeper) find(ctx context.Context) (*pb.Provider, error) {
	if err := k.look(ctx); err != nil {
		return nil, err
	}
	if k.there == nil {
		return nil, &sandbox.End{
			Kind: sandbox.EndRefused, Text: "the gateway has no provider " + k.set.Name,
			Hint: fmt.Sprintf("'openshell provider create --name %s --type TYPE --credential %s' takes the value from the environment; or write "+
				"type and reconcile: create in agentctl.yaml", k.set.Name, strings.Join(k.credentials, " --credential ")),
		}
	}
	if k.there.GetMetadata().GetLabels()[labelRun] != "" {
		return nil, &sandbox.End{
			Kind: sandbox.EndRefused, Text: "the provider " + k.set.Name + " belongs to a run, and is deleted with it",
			Hint: "name another in agentctl.yaml",
		}
	}
	return k.there, nil
}

func (k *keeper) look(ctx context.Context) error {
	return k.b.gateway.again(ctx, "list providers", func(ctx context.Context) error {
		all, err := k.b.gateway.providers(ctx)
		k.there = all[k.set.Name]
		return err
	})
}

// Lock implements [provider.Gateway].
func (k *keeper) Lock(ctx context.Context) (func() error, error) { return k.local.Lock(ctx) }

// Digest implements [provider.Gateway].
func (k *keeper) Digest(d provider.Definition) string { return k.local.Digest(d) }

// Providers implements [provider.Gateway].
func (k *keeper) Providers(ctx context.Context) ([]provider.State, error) {
	if err := k.look(ctx); err != nil || k.there == nil {
		return nil, err
	}
	states, err := k.local.Providers(ctx)
	for _, s := range states {
		if digest, is := strings.CutSuffix(s.Digest, k.written()); is && s.Name == k.set.Name {
			return []provider.State{{Name: s.Name, Digest: digest}}, err
		}
	}
	return []provider.State{{Name: k.set.Name}}, err // others wrote it: its digest is unknown
}

// written ends the digest of the version of the provider that is there.
func (k *keeper) written() string {
	m := k.there.GetMetadata()
	return fmt.Sprintf("@%s:%d", m.GetId(), m.GetResourceVersion())
}

// Apply implements [provider.Gateway].
func (k *keeper) Apply(ctx context.Context, c provider.Change) error {
	if c.Action == provider.Update && k.set.Reconcile != Update {
		return nil // only the operator's setting has it overwritten
	}
	if c.Action == provider.Create {
		if made, err := k.create(ctx, c); made || err != nil {
			return err
		}
		if k.set.Reconcile != Update {
			return nil // another controller made it meanwhile
		}
	}
	return k.update(ctx, c)
}

// create makes the provider. made is false if another controller was faster.
func (k *keeper) create(ctx context.Context, c provider.Change) (made bool, err error) {
	g := k.b.gateway
	p := &pb.Provider{Metadata: &pb.ObjectMeta{Name: k.set.Name}, Type: k.set.Type, Credentials: c.Definition.Credentials}
	err = g.again(ctx, "make a provider", func(ctx context.Context) error {
		r, err := g.client.CreateProvider(ctx, &pb.CreateProviderRequest{Provider: p, WorkspaceScope: g.scope()})
		if err == nil {
			k.there, made = r.GetProvider(), true
		}
		if status.Code(err) == codes.AlreadyExists {
			return nil
		}
		return err
	})
	if err == nil && made {
		return true, k.record(ctx, c)
	}
	if err == nil {
		_, err = k.find(ctx)
	}
	return false, err
}

// update gives the provider the values of the run, unless others changed it since it was read.
func (k *keeper) update(ctx context.Context, c provider.Change) error {
	g := k.b.gateway
	if there, err := k.find(ctx); err != nil {
		return err
	} else if !strings.EqualFold(there.GetType(), k.set.Type) {
		return &sandbox.End{
			Kind: sandbox.EndRefused,
			Text: fmt.Sprintf("the provider %s at the gateway is of type %.60q, not %s", k.set.Name, there.GetType(), k.set.Type),
			Hint: "write its type in agentctl.yaml, or name another provider: the type of one cannot be changed",
		}
	}
	m := k.there.GetMetadata()
	values := map[string]string{}
	for name := range k.there.GetCredentials() {
		values[name] = "" // removes it
	}
	for name, value := range c.Definition.Credentials {
		values[name] = value
	}
	err := g.again(ctx, "update a provider", func(ctx context.Context) error {
		r, err := g.client.UpdateProvider(ctx, &pb.UpdateProviderRequest{WorkspaceScope: g.scope(), Provider: &pb.Provider{
			Metadata: &pb.ObjectMeta{Name: k.set.Name, ResourceVersion: m.GetResourceVersion()}, Credentials: values,
		}})
		if status.Code(err) == codes.Aborted {
			return &sandbox.End{
				Kind: sandbox.EndRefused, Text: "another controller changed the provider " + k.set.Name + " at the gateway meanwhile",
				Hint: "start the run again; two controllers with other values take turns in overwriting them", Err: err,
			}
		}
		if err == nil {
			k.there = r.GetProvider()
		}
		return err
	})
	if err != nil {
		return err
	}
	return k.record(ctx, c)
}

// record stores the digest of what the gateway has now.
func (k *keeper) record(ctx context.Context, c provider.Change) error {
	c.Digest += k.written()
	if err := k.local.Apply(ctx, c); err != nil {
		return fmt.Errorf("store the digest of the provider %s: %w", k.set.Name, err)
	}
	return nil
}
