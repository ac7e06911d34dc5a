package supervisor

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"agentsh/internal/testenv"
	"agentsh/supervisor/notify/listener"
	"agentsh/supervisor/notify/tracer"
	"agentsh/supervisor/probe"
)

// choice are the settings of an operator that decide on the engine of a session.
type choice struct{ forbidden, required, degraded []string }

// engine is the one that a session gets on a machine with the engines there; empty: none opens.
func (c choice) engine(there []string) string {
	for _, name := range there {
		if c.allows(name) {
			return name
		}
	}
	if len(there) == 0 && slices.Contains(c.degraded, probe.NestedCommands) && len(c.required) == 0 {
		return NoEngine
	}
	return ""
}

// allows reports whether forbid_engine and require leave an engine.
func (c choice) allows(name string) bool {
	return !slices.Contains(c.forbidden, name) &&
		!slices.ContainsFunc(c.required, func(r string) bool { return r != probe.RequireEngine+name })
}

// remedies are what the error of a session that does not open must show.
func (c choice) remedies(there []string) []string {
	if !c.allows(listener.Name) && !c.allows(tracer.Name) && (len(there) > 0 || !slices.Contains(c.degraded, probe.NestedCommands)) {
		return []string{
			c.place(listener.Name) + ", and there is no other engine: " + c.place(tracer.Name),
			"\n  for sessions with the engine listener: " + c.leaving(listener.Name),
			"\n  for sessions with the engine trace: " + c.leaving(tracer.Name),
		}
	}
	if len(c.required) > 0 {
		return []string{"c.yaml:2:1: require " + c.required[0] + ": not proven here: ",
			"take the name out of require, at the place that is named"}
	}
	return []string{"degraded: [nested_commands] in /etc/agentsh/config.yaml, or --degraded nested_commands, opens a session without it"}
}

// place is the setting that forbids an engine.
func (c choice) place(name string) string {
	if i := slices.Index(c.forbidden, name); i >= 0 {
		return fmt.Sprintf("c.yaml:1:%d: forbid_engine has %s", i+1, name)
	}
	i := slices.IndexFunc(c.required, func(r string) bool { return r != probe.RequireEngine+name })
	return fmt.Sprintf("c.yaml:2:%d: require has %s", i+1, c.required[i])
}

// leaving are the settings with which a session uses an engine.
func (c choice) leaving(name string) string {
	without := func(names []string, drop string) string {
		return strings.Join(slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == drop }), ", ")
	}
	other := map[string]string{listener.Name: tracer.Name, tracer.Name: listener.Name}[name]
	return "forbid_engine: [" + without(c.forbidden, name) + "], require: [" + without(c.required, probe.RequireEngine+other) + "]"
}

// config is that of a session with these settings, each in a column of its own.
func (c choice) config(t *testing.T) Config {
	cfg, _ := wholeConfig(t, settingsBase)
	for line, names := range [][]string{c.forbidden, c.required, c.degraded} {
		for i, name := range names {
			list := []*[]probe.Setting{&cfg.Forbidden, &cfg.Require, &cfg.Degraded}[line]
			*list = append(*list, probe.Setting{Name: name, At: fmt.Sprintf("c.yaml:%d:%d", line+1, i+1)})
		}
	}
	return cfg
}

// Each combination of the settings opens a session with the engine that they leave, on a machine
// with both engines and on one with none. If they leave none, the error has settings that do.
func TestEachCombinationOfTheSettingsOfEngines(t *testing.T) {
	there, degradations := Engines, [][]string{nil, {probe.NestedCommands}, {probe.CallRules, probe.ExecVerify, probe.NestedCommands}}
	if testenv.Outer() == NoEngine {
		there, degradations = nil, degradations[:2]
	} else {
		testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE, testenv.Landlock)
		testenv.Below(t, t.Name(), "whole", NoEngine, "OUTER_UID=60600", "HOME=/nonexistent")
	}
	const requireListener, requireTrace = probe.RequireEngine + "listener", probe.RequireEngine + "trace"
	for _, forbidden := range [][]string{nil, {listener.Name}, {tracer.Name}, {listener.Name, tracer.Name}} {
		for _, required := range [][]string{nil, {requireListener}, {requireTrace}, {requireListener, requireTrace}} {
			for _, degraded := range degradations {
				choice{forbidden, required, degraded}.check(t, there)
			}
		}
	}
	t.Log("held: " + NoEngine)
}

func (c choice) check(t *testing.T, there []string) {
	t.Helper()
	want := c.engine(there)
	s, err := Open(t.Context(), c.config(t))
	if err == nil {
		if s.Engine() != want {
			t.Errorf("%+v: the engine is %s, want %q", c, s.Engine(), want)
		}
		if err := s.Close(); err != nil {
			t.Errorf("%+v: close: %v", c, err)
		}
		return
	}
	if want != "" {
		t.Errorf("%+v: no session with the engine %s: %v", c, want, err)
		return
	}
	for _, remedy := range c.remedies(there) {
		if !strings.Contains(err.Error(), remedy) {
			t.Errorf("%+v: the error does not say %q: %v", c, remedy, err)
		}
	}
}
