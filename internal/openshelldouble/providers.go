package openshelldouble

import (
	"context"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "agentsh/internal/openshellpb"
)

// Builtin is the id of a profile with endpoints that is there from the beginning. Its variable is BUILTIN_TOKEN.
const Builtin = "builtin"

// redacted is what answers have in the place of values.
const redacted = "REDACTED"

// providers are what the gateway has of credentials.
type providers struct {
	list     map[string]*pb.Provider // with values
	profiles map[string]*pb.ProviderProfile
	versions uint64
	refusals int                      // of deletions: sandboxes that are still being deleted
	before   map[string]func(*Double) // by the name of a call
}

func newProviders() providers {
	return providers{
		list: map[string]*pb.Provider{}, before: map[string]func(*Double){},
		profiles: map[string]*pb.ProviderProfile{Builtin: {
			Id: Builtin, Credentials: []*pb.ProviderProfileCredential{{Name: "token", EnvVars: []string{"BUILTIN_TOKEN"}}},
			Endpoints: []*pb.NetworkEndpoint{{Host: "builtin.example.com", Ports: []uint32{443}}},
		}},
	}
}

// Before has something happen once, after a call was admitted and before it is served.
func (d *Double) Before(call string, do func(*Double)) {
	d.with(func() { d.providers.before[call] = do })
}

// DeleteLate has the next n deletions of providers find a sandbox that is still being deleted.
func (d *Double) DeleteLate(n int) { d.with(func() { d.providers.refusals = n }) }

// Providers are the providers with their values.
func (d *Double) Providers() map[string]*pb.Provider {
	out := map[string]*pb.Provider{}
	d.with(func() {
		for name, p := range d.providers.list {
			out[name] = proto.CloneOf(p)
		}
	})
	return out
}

// Provide makes a provider as somebody else would, or changes it.
func (d *Double) Provide(name, profile string, values map[string]string) {
	d.with(func() {
		p := d.providers.list[name]
		if p == nil {
			p = &pb.Provider{Metadata: &pb.ObjectMeta{Id: "id-" + name, Name: name}, Type: profile}
			d.providers.list[name] = p
		}
		d.providers.versions++
		p.Metadata.ResourceVersion, p.Credentials = d.providers.versions, maps.Clone(values)
	})
}

// Profile adds a profile of the gateway without endpoints.
func (d *Double) Profile(id string, variables ...string) {
	d.with(func() {
		d.providers.profiles[id] = &pb.ProviderProfile{
			Id: id, Credentials: []*pb.ProviderProfileCredential{{Name: "all", EnvVars: variables}},
		}
	})
}

// happen does what a test wants before a call.
func happen(d *Double, method string) {
	name := method[strings.LastIndex(method, "/")+1:]
	var do func(*Double)
	d.with(func() {
		do = d.providers.before[name]
		delete(d.providers.before, name)
	})
	if do != nil {
		do(d)
	}
}

// hidden is a provider without values.
func hidden(p *pb.Provider) *pb.ProviderResponse {
	out := proto.CloneOf(p)
	for name := range out.GetCredentials() {
		out.Credentials[name] = redacted
	}
	return &pb.ProviderResponse{Provider: out}
}

// variables are those of a profile.
func variables(p *pb.ProviderProfile) (out []string) {
	for _, c := range p.GetCredentials() {
		out = append(out, c.GetEnvVars()...)
	}
	return out
}

// checkCredentials refuses variables that a profile does not have.
func (h providers) checkCredentials(p *pb.Provider) error {
	profile := h.profiles[p.GetType()]
	if profile == nil {
		return status.Errorf(codes.InvalidArgument, "no profile %q", p.GetType())
	}
	if len(p.GetCredentials()) == 0 {
		return status.Error(codes.InvalidArgument, "provider.credentials must not be empty")
	}
	for name, value := range p.GetCredentials() {
		if !slices.Contains(variables(profile), name) || value == "" || value == redacted {
			return status.Errorf(codes.InvalidArgument, "credential %q of profile %s", name, profile.GetId())
		}
	}
	return nil
}

// CreateProvider implements the service.
func (d *Double) CreateProvider(_ context.Context, r *pb.CreateProviderRequest) (*pb.ProviderResponse, error) {
	if err := scoped(r.GetWorkspaceScope()); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	p := proto.CloneOf(r.GetProvider())
	name := p.GetMetadata().GetName()
	if name == "" || p.GetMetadata().GetResourceVersion() > 0 || p.GetProfileWorkspace() != "" && p.GetProfileWorkspace() != "default" {
		return nil, status.Errorf(codes.InvalidArgument, "provider %q", name)
	}
	if err := d.providers.checkCredentials(p); err != nil {
		return nil, err
	}
	if d.providers.list[name] != nil {
		return nil, status.Error(codes.AlreadyExists, "provider already exists")
	}
	d.providers.versions++
	p.Metadata.Id, p.Metadata.ResourceVersion = "id-"+name, d.providers.versions
	d.providers.list[name] = p
	return hidden(p), nil
}

// ListProviders implements the service, with pages of two.
func (d *Double) ListProviders(_ context.Context, r *pb.ListProvidersRequest) (*pb.ListProvidersResponse, error) {
	if err := scoped(r.GetWorkspaceScope()); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	out := &pb.ListProvidersResponse{}
	for _, name := range slices.Sorted(maps.Keys(d.providers.list)) {
		if name <= r.GetPageToken() {
			continue
		}
		if len(out.Providers) == 2 {
			out.NextPageToken = out.Providers[1].GetMetadata().GetName()
			break
		}
		out.Providers = append(out.Providers, hidden(d.providers.list[name]).GetProvider())
	}
	return out, nil
}

// UpdateProvider implements the service. The version must be that which the caller has read.
func (d *Double) UpdateProvider(_ context.Context, r *pb.UpdateProviderRequest) (*pb.ProviderResponse, error) {
	if err := scoped(r.GetWorkspaceScope()); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	m := r.GetProvider().GetMetadata()
	there := d.providers.list[m.GetName()]
	switch {
	case there == nil:
		return nil, status.Error(codes.NotFound, "provider not found")
	case r.GetProvider().GetType() != "" && r.GetProvider().GetType() != there.GetType(), len(m.GetLabels()) > 0:
		return nil, status.Error(codes.InvalidArgument, "provider type cannot be changed")
	case m.GetResourceVersion() != there.GetMetadata().GetResourceVersion():
		return nil, status.Error(codes.Aborted, "provider was modified concurrently")
	}
	next := proto.CloneOf(there)
	for name, value := range r.GetProvider().GetCredentials() {
		next.Credentials[name] = value
		if value == "" {
			delete(next.Credentials, name)
		}
	}
	if err := d.providers.checkCredentials(next); err != nil {
		return nil, err
	}
	d.providers.versions++
	next.Metadata.ResourceVersion = d.providers.versions
	d.providers.list[m.GetName()] = next
	return hidden(next), nil
}

// DeleteProvider implements the service. One that a sandbox has stays.
func (d *Double) DeleteProvider(_ context.Context, r *pb.DeleteProviderRequest) (*pb.DeleteProviderResponse, error) {
	if err := scoped(r.GetWorkspaceScope()); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.providers.list[r.GetName()] == nil && !r.GetAllowMissing() {
		return nil, status.Error(codes.NotFound, "provider not found")
	}
	attached := d.providers.refusals > 0
	d.providers.refusals--
	for _, b := range d.sandboxes {
		attached = attached || slices.Contains(b.record.GetSpec().GetProviders(), r.GetName())
	}
	if attached {
		return nil, status.Errorf(codes.FailedPrecondition, "provider '%s' is attached to sandbox(es)", r.GetName())
	}
	delete(d.providers.list, r.GetName())
	return &pb.DeleteProviderResponse{}, nil
}

// GetProviderProfile implements the service. Without a workspace it has the profiles of the gateway alone.
func (d *Double) GetProviderProfile(_ context.Context, r *pb.GetProviderProfileRequest) (*pb.ProviderProfileResponse, error) {
	if r.GetWorkspaceScope() != nil {
		if err := scoped(r.GetWorkspaceScope()); err != nil {
			return nil, err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.providers.profiles[r.GetId()]
	if p == nil {
		return nil, status.Error(codes.NotFound, "provider profile not found")
	}
	return &pb.ProviderProfileResponse{Profile: proto.CloneOf(p)}, nil
}

// ImportProviderProfiles implements the service. It changes no profile.
func (d *Double) ImportProviderProfiles(
	_ context.Context, r *pb.ImportProviderProfilesRequest,
) (*pb.ImportProviderProfilesResponse, error) {
	if err := scoped(r.GetWorkspaceScope()); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	out := &pb.ImportProviderProfilesResponse{}
	for _, item := range r.GetProfiles() {
		p := item.GetProfile()
		why := ""
		switch {
		case d.providers.profiles[p.GetId()] != nil:
			why = "already exists"
		case p.GetId() == "" || strings.Trim(p.GetId(), "abcdefghijklmnopqrstuvwxyz0123456789-") != "":
			why = "must be lowercase kebab-case"
		case p.GetDisplayName() == "" || len(variables(p)) == 0:
			why = "has no name or no credentials"
		}
		if why != "" {
			out.Diagnostics = append(out.Diagnostics, &pb.ProviderProfileDiagnostic{
				ProfileId: p.GetId(), Field: "id", Message: why, Severity: "error",
			})
		}
	}
	if out.Imported = len(out.Diagnostics) == 0; out.Imported {
		for _, item := range r.GetProfiles() {
			d.providers.profiles[item.GetProfile().GetId()] = proto.CloneOf(item.GetProfile())
		}
	}
	return out, nil
}

// ListProviderProfiles implements the service, with pages of two.
func (d *Double) ListProviderProfiles(
	_ context.Context, r *pb.ListProviderProfilesRequest,
) (*pb.ListProviderProfilesResponse, error) {
	if err := scoped(r.GetWorkspaceScope()); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	out := &pb.ListProviderProfilesResponse{}
	for _, id := range slices.Sorted(maps.Keys(d.providers.profiles)) {
		if id <= r.GetPageToken() {
			continue
		}
		if len(out.Profiles) == 2 {
			out.NextPageToken = out.Profiles[1].GetId()
			break
		}
		out.Profiles = append(out.Profiles, proto.CloneOf(d.providers.profiles[id]))
	}
	return out, nil
}

// DeleteProviderProfile implements the service. One that a sandbox uses stays.
func (d *Double) DeleteProviderProfile(
	_ context.Context, r *pb.DeleteProviderProfileRequest,
) (*pb.DeleteProviderProfileResponse, error) {
	if err := scoped(r.GetWorkspaceScope()); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.providers.profiles[r.GetId()] == nil && !r.GetAllowMissing() {
		return nil, status.Error(codes.NotFound, "provider profile not found")
	}
	if r.GetId() == Builtin {
		return nil, status.Errorf(codes.FailedPrecondition, "provider profile '%s' is managed by source 'builtin'", r.GetId())
	}
	for _, b := range d.sandboxes {
		for _, name := range b.record.GetSpec().GetProviders() {
			if d.providers.list[name].GetType() == r.GetId() {
				return nil, status.Errorf(codes.FailedPrecondition, "provider profile '%s' is in use by sandboxes", r.GetId())
			}
		}
	}
	delete(d.providers.profiles, r.GetId())
	return &pb.DeleteProviderProfileResponse{}, nil
}

// Profiles are the ids of all profiles but the one that is built in.
func Profiles(d *Double) (ids []string) {
	d.with(func() {
		ids = slices.DeleteFunc(slices.Sorted(maps.Keys(d.providers.profiles)), func(id string) bool { return id == Builtin })
	})
	return ids
}

// checkProviders refuses a sandbox whose providers are missing or whose policy binds others.
func (h providers) checkProviders(spec *pb.SandboxSpec) error {
	seen := map[string]bool{}
	for _, name := range spec.GetProviders() {
		p := h.list[name]
		if p == nil {
			return status.Errorf(codes.FailedPrecondition, "provider '%s' not found", name)
		}
		for variable := range p.GetCredentials() {
			if seen[variable] {
				return status.Errorf(codes.FailedPrecondition, "two providers have %s", variable)
			}
			seen[variable] = true
		}
	}
	for name := range bindings(spec.GetPolicy()) {
		p := h.list[name]
		if p == nil || !slices.Contains(spec.GetProviders(), name) || len(h.profiles[p.GetType()].GetEndpoints()) > 0 {
			return status.Errorf(codes.FailedPrecondition, "credential_binding.provider %q", name)
		}
	}
	return nil
}

// bindings are the providers that a policy names.
func bindings(p *pb.SandboxPolicy) map[string]bool {
	out := map[string]bool{}
	for _, rule := range p.GetNetworkPolicies() {
		for _, e := range rule.GetEndpoints() {
			if b := e.GetCredentialBinding(); b != nil {
				out[b.GetProvider()] = true
			}
		}
	}
	return out
}

// placeholders are the variables of credentials in a sandbox. Those of a provider without any endpoint are withheld.
func (h providers) placeholders(spec *pb.SandboxSpec) (out []string) {
	bound := bindings(spec.GetPolicy())
	for _, name := range spec.GetProviders() {
		p := h.list[name]
		if len(h.profiles[p.GetType()].GetEndpoints()) == 0 && !bound[name] {
			continue
		}
		for variable := range p.GetCredentials() {
			out = append(out, variable+"=openshell:resolve:env:v1_"+variable)
		}
	}
	return out
}
