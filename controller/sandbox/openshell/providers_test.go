package openshell

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/remote"
	"agentsh/internal/openshelldouble"
	"agentsh/internal/wire"
)

const secret = "s3cret-of-a-provider"

// credential is one of a harness. Its placeholder is that of agentsh.
func credential(name, value string, endpoints ...string) wire.Credential {
	return wire.Credential{
		Name: name, Placeholder: "agentsh-placeholder-" + name, Value: value, Endpoints: endpoints, Header: "Authorization",
	}
}

// withCredentials is a sandbox whose harness has providers.
func withCredentials(id string, list ...wire.Credential) sandbox.Spec {
	s := described(id)
	s.Credentials = list
	return s
}

// api is a provider with the endpoint that the policy of [described] has.
func api(id string) sandbox.Spec {
	return withCredentials(id, credential("api.API_TOKEN", secret, "api.example.com"))
}

// opened makes the sandbox of a run, without a session in it.
func opened(t *testing.T, b *Backend, s sandbox.Spec) (*place, error) {
	t.Helper()
	p := &place{b: b, spec: s}
	stream, err := p.Open(t.Context())
	if err != nil {
		return p, err
	}
	stream.Kill()
	t.Cleanup(func() {
		if err := p.remove(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return p, nil
}

// shows reports where a text is in the files of a directory.
func shows(t *testing.T, dir, what string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(name)
		if strings.Contains(string(data), what) {
			files = append(files, name)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return files
}

func TestProvidersOfARunEndWithIt(t *testing.T) {
	d := openshelldouble.New(t)
	b := open(t, d)
	d.Provide("of-others", openshelldouble.Builtin, map[string]string{"BUILTIN_TOKEN": "other"})
	d.DeleteLate(2)
	s := api("providers-1")
	if err := b.Check(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	box, err := b.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := box.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	name := nameOf("providers-1") + "-1"
	made := d.Providers()[name]
	if !slices.Equal(openshelldouble.Profiles(d), []string{name}) || made.GetType() != name {
		t.Errorf("profiles %q", openshelldouble.Profiles(d))
	}
	if len(d.Providers()) != 2 || made.GetCredentials()["API_TOKEN"] != secret || made.GetMetadata().GetLabels()[labelRun] != "providers-1" {
		t.Fatalf("%v", d.Providers())
	}
	e := d.Policies()[0].GetNetworkPolicies()["api-1"].GetEndpoints()[0]
	if e.GetCredentialBinding().GetProvider() != name || e.GetRules()[0].GetAllow().GetMethod() != "GET" {
		t.Errorf("%v", e)
	}
	got, err := b.Placeholders(t.Context(), s)
	want := map[string]string{"agentsh-placeholder-api.API_TOKEN": "openshell:resolve:env:v1_API_TOKEN"}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	var out strings.Builder
	env := wire.ExecRequest{Argv: []string{"sh", "-c", "env; cat /proc/*/environ 2>/dev/null"}, Cwd: "/sandbox"}
	if _, err := box.Run(t.Context(), env, sandbox.Streams{Stdout: &out}); err != nil || strings.Contains(out.String(), secret) {
		t.Errorf("%v, %s", err, out.String())
	}
	if files := shows(t, b.cfg.State.OpenShell(), secret); len(files) > 0 {
		t.Errorf("files with the value: %q", files)
	}
	if err := box.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := slices.Collect(maps.Keys(d.Providers())); !slices.Equal(left, []string{"of-others"}) || len(d.Names()) > 0 ||
		len(openshelldouble.Profiles(d)) > 0 {
		t.Errorf("left: %q, sandboxes %q, profiles %q", left, d.Names(), openshelldouble.Profiles(d))
	}
}

func TestProvidersOfDeadControllersAreFound(t *testing.T) {
	d := openshelldouble.New(t)
	b := open(t, d)
	for _, id := range []string{"dead-1", "dead-2"} {
		p := &place{b: b, spec: api(id)}
		stream, err := p.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		stream.Kill()
	}
	d.Lose(nameOf("dead-2")) // its provider is left alone
	owner, err := remote.Owner(b.cfg.State)
	if err != nil {
		t.Fatal(err)
	}
	alone := providerPrefix("dead-3") + "1" // was killed between the two
	if err := b.gateway.profile(t.Context(), alone, []string{"X"}, map[string]string{labelOwner: owner, labelRun: "dead-3"}); err != nil {
		t.Fatal(err)
	}
	for id, labels := range map[string]map[string]string{
		"of-others": nil, "foreign-1": {labelOwner: owner, labelRun: "dead-3"},
		providerPrefix("dead-4") + "1": {labelOwner: "o", labelRun: "dead-4"},
	} {
		if err := b.gateway.profile(t.Context(), id, []string{"X"}, labels); err != nil {
			t.Fatal(err)
		}
	}
	d.Provide("of-others", openshelldouble.Builtin, map[string]string{"BUILTIN_TOKEN": "other"})
	left, err := b.Leftovers(t.Context())
	if err != nil || len(left) != 3 || len(d.Providers()) != 3 {
		t.Fatalf("%+v, %v", left, err)
	}
	if left, err = b.Collect(t.Context()); err != nil || len(left) != 3 || left[0].Err != nil || left[1].Err != nil {
		t.Fatalf("%+v, %v", left, err)
	}
	if names := slices.Collect(maps.Keys(d.Providers())); !slices.Equal(names, []string{"of-others"}) || len(d.Names()) > 0 {
		t.Errorf("there are %q, %q", names, d.Names())
	}
	if got, want := openshelldouble.Profiles(d), []string{providerPrefix("dead-4") + "1", "foreign-1", "of-others"}; !slices.Equal(got, want) {
		t.Errorf("profiles %q, want %q", got, want)
	}
}

// TestProvidersSurviveAGateway has the gateway end after each call of a reconciliation, whose answer is lost.
func TestProvidersSurviveAGateway(t *testing.T) {
	for _, call := range []string{
		"ImportProviderProfiles", "CreateProvider", "CreateSandbox", "ListProviders", "DeleteProvider", "ListProviderProfiles",
		"DeleteProviderProfile",
	} {
		t.Run(call, func(t *testing.T) {
			d := openshelldouble.New(t)
			b := open(t, d)
			d.Before(call, (*openshelldouble.Double).Restart)
			p := &place{b: b, spec: api("again-1")}
			stream, err := p.Open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			stream.Kill()
			if len(d.Providers()) != 1 || len(d.Names()) != 1 {
				t.Errorf("%v, %q", d.Providers(), d.Names())
			}
			if err := p.remove(t.Context()); err != nil || len(d.Providers()) > 0 || len(d.Names()) > 0 || len(openshelldouble.Profiles(d)) > 0 {
				t.Errorf("%v, %v, %q, %q", err, d.Providers(), d.Names(), openshelldouble.Profiles(d))
			}
		})
	}
}

func TestWhatKeepsProvidersFromBeingMadeIsNamed(t *testing.T) {
	name := nameOf("refused-1") + "-1"
	for _, tt := range []struct {
		name    string
		prepare func(*openshelldouble.Double, *sandbox.Spec)
		kind    sandbox.EndKind
		says    string
	}{
		{"a token that expires between two calls", func(d *openshelldouble.Double, _ *sandbox.Spec) {
			d.Before("CreateProvider", (*openshelldouble.Double).Expire)
		}, sandbox.EndRefused, "token_file"},
		{"a token that expires before the sandbox", func(d *openshelldouble.Double, _ *sandbox.Spec) {
			d.Before("CreateSandbox", (*openshelldouble.Double).Expire)
		}, sandbox.EndRefused, "token_file"},
		{"a provider of another controller", func(d *openshelldouble.Double, _ *sandbox.Spec) {
			d.Before("CreateProvider", func(d *openshelldouble.Double) {
				d.Provide(name, openshelldouble.Builtin, map[string]string{"BUILTIN_TOKEN": "other"})
			})
		}, sandbox.EndRefused, "another controller made a provider " + name},
		{"a profile of another controller", func(d *openshelldouble.Double, _ *sandbox.Spec) {
			d.Profile(name, "OTHER")
		}, sandbox.EndRefused, "has a profile " + name},
		{"a host without a rule", func(_ *openshelldouble.Double, s *sandbox.Spec) {
			s.Credentials[0].Endpoints = []string{"other.example.com:8443"}
		}, "", "no rule of network_rules allows other.example.com:8443"},
		{"two providers of one host", func(_ *openshelldouble.Double, s *sandbox.Spec) {
			s.Credentials = append(s.Credentials, credential("second.TOKEN", secret, "api.example.com"))
		}, "", "one provider for an endpoint"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := openshelldouble.New(t)
			b := open(t, d)
			s := api("refused-1")
			tt.prepare(d, &s)
			err := b.Check(t.Context(), s)
			if err == nil {
				_, err = opened(t, b, s)
			}
			if err == nil {
				t.Fatal("no error")
			}
			said := err.Error()
			if end := new(sandbox.End); errors.As(err, &end) {
				said += end.Hint
			}
			if kindOf(err) != tt.kind || !strings.Contains(said, tt.says) || strings.Contains(said, secret) {
				t.Errorf("%v, kind %q, want %q and %q", said, kindOf(err), tt.kind, tt.says)
			}
			if left := openshelldouble.Profiles(d); len(d.Names()) > 0 || len(left) > 0 && tt.name != "a profile of another controller" &&
				tt.kind != "" &&
				tt.says != "token_file" {
				t.Errorf("left: %q, profiles %q", d.Names(), left)
			}
		})
	}
}

func TestErrorsOfProvidersHaveNoValues(t *testing.T) {
	a := attached{of: "api", credentials: api("x").Credentials}
	for _, said := range []string{"bad value " + secret, strings.Repeat("x", maxSaid-5) + secret} {
		err := a.named(explain("make a provider", status.Error(codes.InvalidArgument, said)))
		if kindOf(err) != sandbox.EndRefused || !strings.HasPrefix(err.Error(), "provider api: ") {
			t.Errorf("%v", err)
		}
		for e := err; e != nil; e = errors.Unwrap(e) {
			if strings.Contains(e.Error(), secret[:4]) {
				t.Errorf("%v", e)
			}
		}
	}
	if err := a.named(errors.New("bad value " + secret)); strings.Contains(err.Error(), secret) {
		t.Error(err)
	}
}

// keeping is a backend that has a provider of harnesses at the gateway.
func keeping(t *testing.T, d *openshelldouble.Double, set Provider) *Backend {
	t.Helper()
	b := open(t, d)
	b.cfg.Providers = map[string]Provider{"api": set}
	return b
}

func TestAProviderThatStaysIsReconciled(t *testing.T) {
	d := openshelldouble.New(t)
	d.Profile("team", "API_TOKEN", "OLD")
	b := keeping(t, d, Provider{Name: "team-api", Type: "team", Reconcile: Update})
	value := func() string { return d.Providers()["team-api"].GetCredentials()["API_TOKEN"] }
	version := func() uint64 { return d.Providers()["team-api"].GetMetadata().GetResourceVersion() }
	run := func(id, secret string) {
		t.Helper()
		p, err := opened(t, b, withCredentials(id, credential("api.API_TOKEN", secret, "api.example.com")))
		if err != nil {
			t.Fatal(err)
		}
		if err := p.remove(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	run("keep-1", secret)
	made := version()
	e := d.Policies()[0].GetNetworkPolicies()["api-1"].GetEndpoints()[0]
	if value() != secret || e.GetCredentialBinding().GetProvider() != "team-api" {
		t.Fatalf("%v", d.Providers())
	}
	if run("keep-2", secret); version() != made {
		t.Error("the same value was written again")
	}
	if run("keep-3", "another-"+secret); value() != "another-"+secret || version() == made {
		t.Errorf("%v", d.Providers())
	}
	d.Provide("team-api", "team", map[string]string{"API_TOKEN": "of-others", "OLD": "x"}) // others write what this host cannot read
	if run("keep-4", "another-"+secret); value() != "another-"+secret || len(d.Providers()["team-api"].GetCredentials()) != 1 {
		t.Errorf("%v", d.Providers())
	}
	b.cfg.Providers["api"] = Provider{Name: "team-api", Type: "team", Reconcile: Create}
	made = version()
	if run("keep-5", "third-"+secret); version() != made {
		t.Error("a provider of the operator was overwritten")
	}
	b.cfg.Providers["api"] = Provider{Name: "team-api", Reconcile: Attach}
	if run("keep-6", "fourth-"+secret); version() != made || len(d.Providers()) != 1 {
		t.Error("a provider of the operator was overwritten")
	}
	for _, text := range []string{secret, "of-others"} {
		if files := shows(t, b.cfg.State.OpenShell(), text); len(files) > 0 {
			t.Errorf("files with the value: %q", files)
		}
	}
}

func TestConflictsAboutAProviderThatStays(t *testing.T) {
	other := func(d *openshelldouble.Double) {
		d.Provide("team-api", "team", map[string]string{"API_TOKEN": "of-others"})
	}
	for _, tt := range []struct {
		name    string
		set     Provider
		prepare func(*openshelldouble.Double)
		says    string // empty: no error
		value   string // afterwards
	}{
		{"another controller makes it first", Provider{"team-api", "team", Create},
			func(d *openshelldouble.Double) { d.Before("CreateProvider", other) }, "", "of-others"},
		{"another controller makes it first, and this one may overwrite it", Provider{"team-api", "team", Update},
			func(d *openshelldouble.Double) { d.Before("CreateProvider", other) }, "", secret},
		{"another controller changes it meanwhile", Provider{"team-api", "team", Update}, func(d *openshelldouble.Double) {
			other(d)
			d.Before("UpdateProvider", other)
		}, "another controller changed the provider team-api", "of-others"},
		{"the gateway starts again while it is updated", Provider{"team-api", "team", Update}, func(d *openshelldouble.Double) {
			other(d)
			d.Before("ListProviders", (*openshelldouble.Double).Restart)
		}, "", secret},
		{"the token expires while it is updated", Provider{"team-api", "team", Update}, func(d *openshelldouble.Double) {
			other(d)
			d.Before("UpdateProvider", (*openshelldouble.Double).Expire)
		}, "Unauthenticated", "of-others"},
		{"it is of another type", Provider{"team-api", "other", Update}, other, "is of type \"team\", not other", "of-others"},
		{"it is missing", Provider{"team-api", "", Attach}, func(*openshelldouble.Double) {}, "has no provider team-api", ""},
		{"it has not the credential", Provider{"team-api", "", Attach}, func(d *openshelldouble.Double) {
			d.Provide("team-api", "team", map[string]string{"OTHER": "x"})
		}, "has no credential API_TOKEN", ""},
		{"its profile has endpoints", Provider{"team-api", "", Attach}, func(d *openshelldouble.Double) {
			d.Provide("team-api", openshelldouble.Builtin, map[string]string{"API_TOKEN": "x"})
		}, "", "x"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := openshelldouble.New(t)
			d.Profile("team", "API_TOKEN", "OTHER")
			b := keeping(t, d, tt.set)
			tt.prepare(d)
			_, err := opened(t, b, api("conflict-1"))
			if (err == nil) != (tt.says == "") || err != nil && (kindOf(err) != sandbox.EndRefused || !strings.Contains(err.Error(), tt.says)) {
				t.Errorf("%v, want %q", err, tt.says)
			}
			if value := d.Providers()["team-api"].GetCredentials()["API_TOKEN"]; value != tt.value {
				t.Errorf("the value is %q, want %q", value, tt.value)
			}
		})
	}
}
