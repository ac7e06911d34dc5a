package openshell

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"agentsh/controller/provider"
	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/remote"
	pb "agentsh/internal/openshellpb"
	"agentsh/internal/text"
	"agentsh/internal/wire"
)

// attached is a provider of the gateway that a sandbox has.
type attached struct {
	name        string            // at the gateway
	of          string            // the provider of the harness
	credentials []wire.Credential // of that provider
	bound       bool              // the policy says where they may be used, and not their profile
}

// grouped are the credentials of each provider of a harness, in the order of their names.
func grouped(list []wire.Credential) []attached {
	by := map[string][]wire.Credential{}
	for _, c := range list {
		of, _, _ := strings.Cut(c.Name, ".")
		by[of] = append(by[of], c)
	}
	var out []attached
	for _, of := range slices.Sorted(maps.Keys(by)) {
		list := by[of]
		slices.SortFunc(list, func(a, b wire.Credential) int { return strings.Compare(a.Name, b.Name) })
		out = append(out, attached{of: of, credentials: list})
	}
	return out
}

// variable is the name of a credential, which is its variable in the sandbox.
func variable(c wire.Credential) string {
	_, name, _ := strings.Cut(c.Name, ".")
	return name
}

// values are the credentials by their variables.
func (a attached) values() map[string]string {
	out := map[string]string{}
	for _, c := range a.credentials {
		out[variable(c)] = c.Value
	}
	return out
}

// providerPrefix begins the names of the providers of a run.
func providerPrefix(run string) string { return nameOf(run) + "-" }

// provide makes the providers of a sandbox, or finds those that stay. No error has the value of a credential.
func (p *place) provide(ctx context.Context, labels map[string]string) ([]attached, error) {
	list := grouped(p.spec.Credentials)
	for i := range list {
		a := &list[i]
		var err error
		if set, is := p.b.cfg.Providers[a.of]; is {
			err = p.b.kept(ctx, a, set)
		} else {
			a.name, a.bound = providerPrefix(p.spec.RunID)+strconv.Itoa(i+1), true
			err = p.own(ctx, *a, labels)
		}
		if err != nil {
			return nil, a.named(err)
		}
	}
	return list, nil
}

// own makes a provider of this run alone. A gateway that starts again is asked again: whether it has made the
// provider is seen by the labels.
func (p *place) own(ctx context.Context, a attached, labels map[string]string) error {
	g := p.b.gateway
	p.provided = true
	if err := g.profile(ctx, a.name, slices.Sorted(maps.Keys(a.values())), labels); err != nil {
		return err
	}
	return g.again(ctx, "make a provider", func(ctx context.Context) error {
		_, err := g.client.CreateProvider(ctx, &pb.CreateProviderRequest{WorkspaceScope: g.scope(), Provider: &pb.Provider{
			Metadata: &pb.ObjectMeta{Name: a.name, Labels: labels}, Type: a.name, ProfileWorkspace: g.workspace, Credentials: a.values(),
		}})
		if status.Code(err) != codes.AlreadyExists {
			return err
		}
		all, failed := g.providers(ctx)
		if failed != nil {
			return failed
		}
		if there := all[a.name]; there != nil && maps.Equal(there.GetMetadata().GetLabels(), labels) {
			return nil
		}
		return taken(a.name)
	})
}

// taken is the end of a run whose provider has the name of another.
func taken(name string) error {
	return &sandbox.End{
		Kind: sandbox.EndRefused, Text: "another controller made a provider " + name + " at the gateway",
		Hint: "look at it with 'openshell provider get " + name + "', and start the run again",
	}
}

// again asks the gateway until it answers, while it does not answer at all. Errors of do are those of the gateway, or ends.
func (g *gateway) again(ctx context.Context, what string, do func(context.Context) error) error {
	look := time.NewTicker(readyLook)
	defer look.Stop()
	for {
		asking, cancel := context.WithTimeout(ctx, requestTime)
		err := do(asking)
		cancel()
		var end *sandbox.End
		switch {
		case err == nil:
			return nil
		case errors.As(err, &end) && !end.Passes():
			return err
		case end == nil && !passes(err):
			return rights(explain(what, err))
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return explain(what, err)
		}
	}
}

// rights says what a caller needs who may not change providers.
func rights(err error) error {
	var end *sandbox.End
	if errors.As(err, &end) && status.Code(end.Err) == codes.PermissionDenied {
		end.Hint = "providers need the role of an admin in the workspace; or have the operator make one, and name it in agentctl.yaml: " +
			"openshell: {providers: {NAME: {name: NAME-AT-THE-GATEWAY}}}"
	}
	return err
}

// providers are the providers of the workspace, by name. They have no values.
func (g *gateway) providers(ctx context.Context) (map[string]*pb.Provider, error) {
	out := map[string]*pb.Provider{}
	err := pages(func(token string) (page, error) {
		list, err := g.client.ListProviders(ctx, &pb.ListProvidersRequest{PageToken: token, WorkspaceScope: g.scope()})
		for _, p := range list.GetProviders() {
			out[p.GetMetadata().GetName()] = p
		}
		return list, err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// profile makes the profile of a provider of this run, which has its name. It has no endpoints, so that the policy of a sandbox says where
// the credentials are used, and no rule comes with it. Its annotations are the labels of the sandbox.
func (g *gateway) profile(ctx context.Context, name string, variables []string, labels map[string]string) error {
	want := &pb.ProviderProfile{
		Id: name, DisplayName: "agentsh: " + strings.Join(variables, ", "), Description: "Credentials of a run of agentctl.", Annotations: labels,
	}
	for _, v := range variables {
		want.Credentials = append(want.Credentials, &pb.ProviderProfileCredential{Name: strings.ToLower(v), EnvVars: []string{v}})
	}
	return g.again(ctx, "make the profile of a provider", func(ctx context.Context) error {
		said, err := g.client.ImportProviderProfiles(ctx, &pb.ImportProviderProfilesRequest{
			Profiles: []*pb.ProviderProfileImportItem{{Profile: want, Source: "agentctl"}}, WorkspaceScope: g.scope(),
		})
		if err != nil || said.GetImported() {
			return err
		}
		// The answer to an earlier question may have been lost.
		there, err := g.client.GetProviderProfile(ctx, &pb.GetProviderProfileRequest{Id: name, WorkspaceScope: g.scope()})
		switch {
		case status.Code(err) == codes.NotFound:
			return refusedProfile(name, said.GetDiagnostics())
		case err == nil && (!maps.Equal(there.GetProfile().GetAnnotations(), labels) || !sameProfile(there.GetProfile(), want)):
			return &sandbox.End{
				Kind: sandbox.EndRefused, Text: "the gateway has a profile " + name + " that is not of this run",
				Hint: "look at it with 'openshell provider profile export " + name + "', and start the run again",
			}
		}
		return err
	})
}

// profiles are the profiles of the workspace, by id.
func (g *gateway) profiles(ctx context.Context) (map[string]*pb.ProviderProfile, error) {
	out := map[string]*pb.ProviderProfile{}
	err := pages(func(token string) (page, error) {
		list, err := g.client.ListProviderProfiles(ctx, &pb.ListProviderProfilesRequest{PageToken: token, WorkspaceScope: g.scope()})
		for _, p := range list.GetProfiles() {
			out[p.GetId()] = p
		}
		return list, err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// sameProfile reports whether a profile has the variables of another and no endpoints.
func sameProfile(a, b *pb.ProviderProfile) bool {
	variables := func(p *pb.ProviderProfile) (out []string) {
		for _, c := range p.GetCredentials() {
			out = append(out, c.GetEnvVars()...)
		}
		slices.Sort(out)
		return out
	}
	return len(a.GetEndpoints()) == 0 && slices.Equal(variables(a), variables(b))
}

func refusedProfile(id string, said []*pb.ProviderProfileDiagnostic) error {
	var why []string
	for _, d := range said {
		why = append(why, strings.TrimSpace(d.GetField()+" "+d.GetMessage()))
	}
	return explain("make the profile "+id, status.Error(codes.InvalidArgument, strings.Join(why, "; ")))
}

// unprovide deletes the providers of this run, and their profiles. One that is attached to a sandbox which is being deleted is tried again.
func (p *place) unprovide(ctx context.Context) error {
	if !p.provided {
		return nil
	}
	g := p.b.gateway
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	var all map[string]*pb.Provider
	err := g.again(ctx, "list providers", func(ctx context.Context) (err error) {
		all, err = g.providers(ctx)
		return err
	})
	for name, one := range all {
		if plain(name) && one.GetMetadata().GetLabels()[labelRun] == p.spec.RunID {
			err = errors.Join(err, g.removeProvider(ctx, name))
		}
	}
	var profiles map[string]*pb.ProviderProfile
	err = errors.Join(err, g.again(ctx, "list profiles", func(ctx context.Context) (err error) {
		profiles, err = g.profiles(ctx)
		return err
	}))
	for id, one := range profiles {
		if plain(id) && one.GetAnnotations()[labelRun] == p.spec.RunID {
			err = errors.Join(err, g.removeProfile(ctx, id))
		}
	}
	p.provided = err != nil
	return err
}

// foundProviders lists the providers of an owner, and their profiles: they are deleted in this order, after the sandboxes that have them.
func (g *gateway) foundProviders(ctx context.Context, owner string) (out []remote.Found, err error) {
	add := func(name string, labels map[string]string, remove func(context.Context, string) error) {
		if run := labels[labelRun]; plain(run) && plain(name) && labels[labelOwner] == owner && strings.HasPrefix(name, providerPrefix(run)) {
			out = append(out, remote.Found{Run: run, Remove: func(ctx context.Context) error { return remove(ctx, name) }})
		}
	}
	providers, err := g.providers(ctx)
	for _, name := range slices.Sorted(maps.Keys(providers)) {
		add(name, providers[name].GetMetadata().GetLabels(), g.removeProvider)
	}
	if err == nil {
		var profiles map[string]*pb.ProviderProfile
		profiles, err = g.profiles(ctx)
		for _, id := range slices.Sorted(maps.Keys(profiles)) {
			add(id, profiles[id].GetAnnotations(), g.removeProfile)
		}
	}
	if status.Code(err) == codes.PermissionDenied {
		return out, nil // who may not see them has made none
	}
	return out, explain("list providers and profiles", err)
}

// removeProfile deletes a profile. One that is gone is no error.
func (g *gateway) removeProfile(ctx context.Context, id string) error {
	return g.drop(ctx, "delete profile "+id, func(ctx context.Context) error {
		_, err := g.client.DeleteProviderProfile(ctx, &pb.DeleteProviderProfileRequest{Id: id, WorkspaceScope: g.scope(), AllowMissing: true})
		return err
	})
}

// removeProvider deletes a provider. One that is gone is no error.
func (g *gateway) removeProvider(ctx context.Context, name string) error {
	return g.drop(ctx, "delete provider "+name, func(ctx context.Context) error {
		_, err := g.client.DeleteProvider(ctx, &pb.DeleteProviderRequest{Name: name, WorkspaceScope: g.scope(), AllowMissing: true})
		return err
	})
}

// drop deletes something that a sandbox may have.
func (g *gateway) drop(ctx context.Context, what string, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	return g.again(ctx, what, func(ctx context.Context) error {
		err := do(ctx)
		switch status.Code(err) {
		case codes.NotFound:
			return nil
		case codes.FailedPrecondition: // the sandbox has it as long as it is being deleted
			return status.Error(codes.Unavailable, status.Convert(err).Message())
		}
		return err
	})
}

// named says of which provider of the harness an error is, without the values of its credentials. An end stays an end.
func (a attached) named(err error) error {
	values := slices.Collect(maps.Values(a.values()))
	keep := []error{context.Canceled, context.DeadlineExceeded}
	var end *sandbox.End
	if !errors.As(err, &end) {
		return provider.Scrub(fmt.Errorf("provider %s: %w", a.of, err), values, keep...)
	}
	clean := *end
	clean.Err = provider.Scrub(end.Err, values, keep...)
	if end.Err != nil && clean.Err.Error() != end.Err.Error() { // the text may have a part of the value
		clean.Text = text.Short(clean.Err.Error(), maxSaid)
	}
	clean.Text = provider.Scrub(fmt.Errorf("provider %s: %s", a.of, clean.Text), values).Error()
	return &clean
}
