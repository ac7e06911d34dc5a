package openshell

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
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
	profile, err := g.profile(ctx, slices.Sorted(maps.Keys(a.values())))
	if err != nil {
		return err
	}
	p.provided = true
	return g.again(ctx, "make a provider", func(ctx context.Context) error {
		_, err := g.client.CreateProvider(ctx, &pb.CreateProviderRequest{WorkspaceScope: g.scope(), Provider: &pb.Provider{
			Metadata: &pb.ObjectMeta{Name: a.name, Labels: labels}, Type: profile, ProfileWorkspace: g.workspace, Credentials: a.values(),
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
	err := pages(func(token string) (string, error) {
		page, err := g.client.ListProviders(ctx, &pb.ListProvidersRequest{PageToken: token, WorkspaceScope: g.scope()})
		for _, p := range page.GetProviders() {
			out[p.GetMetadata().GetName()] = p
		}
		return page.GetNextPageToken(), err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// profile is the id of the profile of providers with these variables. It has no endpoints, so that the policy of a sandbox
// says where they are used, and no rule comes with it. It is the same for all runs and stays.
func (g *gateway) profile(ctx context.Context, variables []string) (id string, err error) {
	sum := sha256.Sum256([]byte(strings.Join(variables, "\n")))
	id = "agentsh-" + hex.EncodeToString(sum[:8])
	want := &pb.ProviderProfile{
		Id: id, DisplayName: "agentsh: " + strings.Join(variables, ", "), Description: "Credentials of runs of agentctl.",
	}
	for _, name := range variables {
		want.Credentials = append(want.Credentials, &pb.ProviderProfileCredential{Name: strings.ToLower(name), EnvVars: []string{name}})
	}
	return id, g.again(ctx, "make the profile of a provider", func(ctx context.Context) error {
		there, err := g.client.GetProviderProfile(ctx, &pb.GetProviderProfileRequest{Id: id, WorkspaceScope: g.scope()})
		if status.Code(err) == codes.NotFound {
			var said *pb.ImportProviderProfilesResponse
			said, err = g.client.ImportProviderProfiles(ctx, &pb.ImportProviderProfilesRequest{
				Profiles: []*pb.ProviderProfileImportItem{{Profile: want, Source: "agentctl"}}, WorkspaceScope: g.scope(),
			})
			if err != nil || said.GetImported() {
				return err
			}
			// Another controller may have made it meanwhile.
			there, err = g.client.GetProviderProfile(ctx, &pb.GetProviderProfileRequest{Id: id, WorkspaceScope: g.scope()})
			if status.Code(err) == codes.NotFound {
				return refusedProfile(id, said.GetDiagnostics())
			}
		}
		if err == nil && !sameProfile(there.GetProfile(), want) {
			return &sandbox.End{
				Kind: sandbox.EndRefused, Text: "the profile " + id + " at the gateway is not that of agentctl: somebody changed it",
				Hint: "'openshell provider profile delete " + id + "', and start the run again",
			}
		}
		return err
	})
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

// unprovide deletes the providers of this run. One that is attached to a sandbox which is being deleted is tried again.
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
		if one.GetMetadata().GetLabels()[labelRun] == p.spec.RunID {
			err = errors.Join(err, g.removeProvider(ctx, name))
		}
	}
	p.provided = err != nil
	return err
}

// removeProvider deletes a provider. One that is gone is no error.
func (g *gateway) removeProvider(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	return g.again(ctx, "delete provider "+name, func(ctx context.Context) error {
		_, err := g.client.DeleteProvider(ctx, &pb.DeleteProviderRequest{Name: name, WorkspaceScope: g.scope(), AllowMissing: true})
		switch status.Code(err) {
		case codes.NotFound:
			return nil
		case codes.FailedPrecondition: // it is attached as long as its sandbox is being deleted
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
