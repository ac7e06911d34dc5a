package policytest

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/policy/env"
)

// DiffSettings describes the settings of commands that differ under b from
// those under a, one sentence each: variables of a request, injected variables,
// limits, the git guard, and what people may do by ssh. It shows no values of variables.
func DiffSettings(a, b *policy.Policy) ([]string, error) {
	names, err := variableNames(a, b)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, name := range names {
		was, is := passes(name, a.EnvFilter(nil)), passes(name, b.EnvFilter(nil))
		switch {
		case is && !was:
			out = append(out, "variable "+name+" of a request reaches commands")
		case was && !is:
			out = append(out, "variable "+name+" of a request no longer reaches commands")
		}
	}
	was, _ := a.GitGuard()
	if is, _ := b.GitGuard(); is != was {
		out = append(
			out,
			map[bool]string{true: "repositories are guarded (git_guard)", false: "repositories are no longer guarded (git_guard)"}[is],
		)
	}
	for _, via := range []string{wire.ViaSSH, wire.ViaForward} {
		was, what := a.SSH().Permits(via)
		if is, _ := b.SSH().Permits(via); is != was {
			out = append(out, map[bool]string{true: "people get " + what.Rule, false: "people no longer get " + what.Rule}[is])
		}
	}
	out = append(out, injectedDiff(a.EnvInject(), b.EnvInject())...)
	return append(out, limitsDiff(a.Limits(nil), b.Limits(nil))...), nil
}

// variableNames are names made from the patterns of env_policy of both
// policies, and some that are on no list or on the built-in one.
func variableNames(policies ...*policy.Policy) ([]string, error) {
	names := []string{"SOME_OTHER_VARIABLE", "LD_PRELOAD", "SOME_TOKEN"}
	for _, p := range policies {
		for _, source := range p.Sources() {
			root, err := parseSource(source)
			if err != nil {
				return nil, err
			}
			w := writtenRule{node: root, vars: p.Vars()}
			for _, key := range []string{"allow", "deny"} {
				names = append(names, all(w.texts("env_policy", key), globTexts)...)
			}
		}
	}
	names = slices.DeleteFunc(names, func(s string) bool { return !env.ValidName(s) })
	slices.Sort(names)
	return slices.Compact(names), nil
}

func injectedDiff(a, b map[string]string) []string {
	both := maps.Clone(a)
	maps.Copy(both, b)
	var out []string
	for _, name := range slices.Sorted(maps.Keys(both)) {
		was, before := a[name]
		is, after := b[name]
		switch {
		case !before:
			out = append(out, "env_inject sets "+name)
		case !after:
			out = append(out, "env_inject no longer sets "+name)
		case was != is:
			out = append(out, "env_inject sets another "+name)
		}
	}
	return out
}

// limitsDiff compares limits field by field; 0 is no limit.
func limitsDiff(a, b policy.Limits) []string {
	var out []string
	va, vb := reflect.ValueOf(a), reflect.ValueOf(b)
	for i := range va.NumField() {
		if was, is := va.Field(i).Interface(), vb.Field(i).Interface(); was != is {
			out = append(out, fmt.Sprintf("limit %s is %v, was %v", va.Type().Field(i).Name, is, was))
		}
	}
	return out
}
