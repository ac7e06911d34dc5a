package probe

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"agentsh/supervisor/probe/trial"
)

func TestAGuaranteeIsHeldByWhatTheSessionHas(t *testing.T) {
	gone := errors.New("gone")
	noScopes := Missing{Landlock: gone, LandlockScopes: gone}
	scopes := ""
	if trial.LandlockABI() >= trial.LandlockScopes {
		scopes = " landlock_scopes"
	}
	for _, tt := range []struct {
		name    string
		session Session
		missing Missing
		want    map[string]string
	}{
		{"a network of its own", Session{}, nil, map[string]string{
			guaranteeSignals: "pid_namespace" + scopes, guaranteeSockets: "net_namespace" + scopes}},
		{"a network of its own, without scopes", Session{}, noScopes, map[string]string{
			guaranteeSignals: "pid_namespace", guaranteeSockets: "net_namespace"}},
		{"a shared network, without scopes", Session{SharedNetwork: true}, noScopes, map[string]string{guaranteeSignals: "pid_namespace"}},
		{"neither namespaces nor scopes", Session{}, Missing{Namespaces: gone, Landlock: gone}, map[string]string{guaranteeSignals: "engine"}},
	} {
		got := tt.session.Holders(tt.missing)
		maps.DeleteFunc(got, func(name, _ string) bool { return name != guaranteeSignals && name != guaranteeSockets })
		if !maps.Equal(got, tt.want) {
			t.Errorf("%s: %v", tt.name, got)
		}
		for _, name := range []string{guaranteeSignals, guaranteeSockets} {
			primitives, err := tt.session.required(name, tt.missing)
			if (err == nil) != (tt.want[name] != "") || err == nil && primitives[0] != strings.Fields(tt.want[name])[0] {
				t.Errorf("%s: require %s: %v, %v", tt.name, name, primitives, err)
			}
		}
	}
}

func TestScopesAreMissingOnlyWhereNothingElseHoldsTheirGuarantees(t *testing.T) {
	gone := errors.New("gone")
	for _, tt := range []struct {
		session Session
		missing Missing
		holds   bool
	}{
		{Session{}, nil, true},
		{Session{SharedNetwork: true}, nil, false},
		{Session{}, Missing{Namespaces: gone}, false},
	} {
		if got := tt.session.holds(LandlockScopes, tt.missing); got != tt.holds {
			t.Errorf("%+v without %v: %t", tt.session, tt.missing, got)
		}
	}
}
