package env

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

func build1(t *testing.T, l Layers) Result {
	t.Helper()
	r, err := Build(l)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (r Result) value(name string) (string, bool) {
	for _, e := range r.Env {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v, true
		}
	}
	return "", false
}

func (r Result) reason(name string) string {
	for _, d := range r.Dropped {
		if d.Name == name {
			return d.Reason
		}
	}
	return ""
}

func TestLaterLayersWin(t *testing.T) {
	r := build1(t, Layers{
		Baseline:   []Var{{"A", "1"}, {"B", "1"}, {"C", "1"}, {"D", "1"}},
		Request:    []string{"B=2", "C=2", "D=2"},
		Files:      []File{{"a.env", []byte("C=3\nD=3\n")}, {"generated.env", []byte("C=3b\n")}},
		Supervisor: []Var{{"AGENTSH_SESSION", "s"}},
		Inject:     []Inject{{"config", map[string]string{"D": "4", "E": "4"}}, {"policy", map[string]string{"E": "5"}}},
	})
	want := []string{"A=1", "AGENTSH_SESSION=s", "B=2", "C=3b", "D=4", "E=5"}
	if !slices.Equal(r.Env, want) {
		t.Errorf("environment is %q, want %q", r.Env, want)
	}
	origins := []Origin{
		{Name: "A", Layer: LayerBaseline},
		{Name: "AGENTSH_SESSION", Layer: LayerSupervisor},
		{Name: "B", Layer: LayerRequest, Rule: "not on the built-in drop list", Replaces: []Layer{LayerBaseline}},
		{Name: "C", Layer: LayerFile, Source: "generated.env:1:1", Replaces: []Layer{LayerBaseline, LayerRequest}},
		{Name: "D", Layer: LayerInject, Source: "config"},
		{Name: "E", Layer: LayerInject, Source: "policy"},
	}
	if !reflect.DeepEqual(r.Origins, origins) {
		t.Errorf("origins are %+v, want %+v", r.Origins, origins)
	}
	for _, d := range r.Dropped {
		if d.Name != "D" || !strings.Contains(d.Reason, "env_inject of config") {
			t.Errorf("dropped %+v: only D is reserved", d)
		}
	}
	if len(r.Dropped) != 3 {
		t.Errorf("D was dropped %d times, want from baseline, request and file", len(r.Dropped))
	}
}

func TestRequestIsFiltered(t *testing.T) {
	tests := []struct {
		name   string
		filter Filter
		entry  string
		reason string // part of it; empty: the variable passes
	}{
		{"an ordinary variable passes", Filter{}, "CI=1", ""},
		{"an empty value passes", Filter{}, "CI=", ""},
		{"a value may hold = and newlines", Filter{}, "CI=a=b\nPATH=x", ""},
		{"PATH of the request passes, programs are judged by their file", Filter{}, "PATH=/x", ""},
		{"a loader hook is dropped", Filter{}, "LD_PRELOAD=/x.so", "loader"},
		{"BASH_ENV is dropped", Filter{}, "BASH_ENV=/x", "shell"},
		{"an exported function is dropped", Filter{}, "BASH_FUNC_ls%%=() { :; }", "malformed"},
		{"a python hook is dropped", Filter{}, "PYTHONSTARTUP=/x", "interpreter"},
		{"a git hook is dropped", Filter{}, "GIT_CONFIG_COUNT=1", "git"},
		{"the git author is not a hook", Filter{}, "GIT_AUTHOR_NAME=a", ""},
		{"a credential is dropped", Filter{}, "GITHUB_TOKEN=x", "credential"},
		{"a name with a newline is malformed", Filter{}, "A\nB=1", "malformed"},
		{"an empty name is malformed", Filter{}, "=1", "malformed"},
		{"a NUL in the value is refused", Filter{}, "A=1\x00B", "NUL"},
		{"a variable longer than an exec takes is dropped", Filter{}, "A=" + strings.Repeat("x", MaxVar), "longer"},
		{"a variable as long as an exec takes passes", Filter{}, "A=" + strings.Repeat("x", MaxVar-2), ""},
		{"the supervisor's prefix is reserved", Filter{Allow: []string{"AGENTSH_*"}}, "AGENTSH_X=1", "supervisor"},
		{"SHLVL cannot be lowered", Filter{Allow: []string{"SHLVL"}}, "SHLVL=0", "bash"},
		{"SSH_CLIENT is dropped even when it is named", Filter{Allow: []string{"SSH_CLIENT"}}, "SSH_CLIENT=x", "bash"},
		{
			"an allow list drops what it does not name",
			Filter{Source: "env_policy", Allow: []string{"CI"}},
			"FOO=1",
			"not in the allow list of env_policy",
		},
		{"an empty allow list drops everything", Filter{Allow: []string{}}, "FOO=1", "allow list"},
		{"an allow list can name a hook", Filter{Allow: []string{"LD_*"}}, "LD_PRELOAD=/x", ""},
		{"a lone star does not mean the hooks", Filter{Allow: []string{"*"}}, "LD_PRELOAD=/x", "loader"},
		{"a star and a name let both through", Filter{Allow: []string{"*", "PYTHONPATH"}}, "PYTHONPATH=/x", ""},
		{"deny beats allow", Filter{Allow: []string{"CI"}, Deny: []string{"C?"}}, "CI=1", "pattern C?"},
		{"a pattern with braces denies", Filter{Deny: []string{"{CI,CD}"}}, "CI=1", "pattern {CI,CD}"},
		{"a pattern with a set allows", Filter{Allow: []string{"C[A-I]"}}, "CI=1", ""},
		{"a pattern that cannot be read denies", Filter{Deny: []string{"[X"}}, "CI=1", "pattern [X"},
		{"a pattern that cannot be read allows nothing", Filter{Allow: []string{"[X"}}, "CI=1", "allow list"},
		{"names are case-sensitive", Filter{Deny: []string{"ci"}}, "CI=1", ""},
		{"a merged filter denies too", Filter{}.Merge(Filter{Source: "rule x", Deny: []string{"CI"}}), "CI=1", "denied by rule x"},
		{
			"a merged allow list narrows",
			Filter{Allow: []string{"*"}}.Merge(Filter{Source: "rule x", Allow: []string{"B"}}),
			"CI=1",
			"allow list of rule x",
		},
		{"a merged allow list does not widen", Filter{Allow: []string{"CI"}}.Merge(Filter{Allow: []string{"*"}}), "B=1", "allow list"},
		{"what both lists name passes", Filter{Allow: []string{"CI"}}.Merge(Filter{Allow: []string{"C*"}}), "CI=1", ""},
		{"a filter merged into a merged one holds", Filter{}.Merge(Filter{}.Merge(Filter{Deny: []string{"CI"}})), "CI=1", "denied"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := build1(t, Layers{Request: []string{tt.entry}, Filter: tt.filter})
			name, value, _ := strings.Cut(tt.entry, "=")
			got, present := r.value(name)
			if present != (tt.reason == "") || present && got != value {
				t.Errorf("present is %v", present)
			}
			if reason := r.reason(name); !strings.Contains(reason, tt.reason) || tt.reason != "" && reason == "" {
				t.Errorf("reason is %q, want %q in it", reason, tt.reason)
			}
		})
	}
}

func TestEntryWithoutEqualsShowsNothing(t *testing.T) {
	r := build1(t, Layers{Request: []string{"A=1", "hunter2"}})
	if len(r.Dropped) != 1 || r.Dropped[0].Name != "" || strings.Contains(r.Dropped[0].Reason, "hunter2") {
		t.Errorf("dropped is %+v: the entry may be a value", r.Dropped)
	}
}

func TestLastOfDuplicatesWins(t *testing.T) {
	r := build1(t, Layers{Request: []string{"A=1", "B=x", "A=2", "A=3"}})
	if want := []string{"A=3", "B=x"}; !slices.Equal(r.Env, want) {
		t.Errorf("environment is %q, want %q", r.Env, want)
	}
	if len(r.Dropped) != 2 || r.Dropped[0].Name != "A" || !strings.Contains(r.Dropped[0].Reason, "again later") {
		t.Errorf("dropped is %+v, want the first two A", r.Dropped)
	}
}

func TestFilesCannotSetReservedNames(t *testing.T) {
	data := "GITHUB_TOKEN=t\nPATH=/evil\nLD_PRELOAD=/x\nBASH_ENV=/x\nAGENTSH_X=1\nNODE_OPTIONS=--no-warnings\nOUT=1\n"
	r := build1(t, Layers{
		Baseline: Baseline(Environment{}), Files: []File{{"a.env", []byte(data)}},
		Filter: Filter{Source: "env_policy", Allow: []string{"NOTHING"}, Deny: []string{"OUT"}},
	})
	for _, name := range []string{"LD_PRELOAD", "BASH_ENV", "AGENTSH_X", "OUT"} {
		if _, there := r.value(name); there || r.reason(name) == "" {
			t.Errorf("%s: set %v, reason %q", name, there, r.reason(name))
		}
	}
	for _, name := range []string{"GITHUB_TOKEN", "NODE_OPTIONS"} {
		if _, there := r.value(name); !there {
			t.Errorf("%s: the allow list does not apply to delivered values", name)
		}
	}
	if path, _ := r.value("PATH"); strings.Contains(path, "evil") || !strings.HasPrefix(r.reason("PATH"), "a.env:2:1: reserved") {
		t.Errorf("PATH is %q, reason %q", path, r.reason("PATH"))
	}
}

func TestDenyReachesTheBaselineButNotSHLVL(t *testing.T) {
	r := build1(t, Layers{Baseline: Baseline(Environment{}), Filter: Filter{Deny: []string{"*"}}})
	if want := []string{"SHLVL=1"}; !slices.Equal(r.Env, want) {
		t.Errorf("environment is %q, want %q", r.Env, want)
	}
}

func TestInjectPassesEveryFilter(t *testing.T) {
	r := build1(t, Layers{
		Baseline: []Var{{"BASH_ENV", "0"}}, Request: []string{"BASH_ENV=1", "BASH_ENV=2"}, Files: []File{{"f", []byte("BASH_ENV=3")}},
		Supervisor: []Var{{"AGENTSH_A", "own"}},
		Filter:     Filter{Allow: []string{}, Deny: []string{"*"}},
		Inject:     []Inject{{"config", map[string]string{"BASH_ENV": "/c", "AGENTSH_A": "op"}}, {"policy", map[string]string{"BASH_ENV": "/p"}}},
	})
	if want := []string{"AGENTSH_A=op", "BASH_ENV=/p"}; !slices.Equal(r.Env, want) {
		t.Errorf("environment is %q, want %q", r.Env, want)
	}
}

func TestBuildRefuses(t *testing.T) {
	tests := []struct {
		name string
		l    Layers
		want string
	}{
		{"a malformed file", Layers{Files: []File{{"x.env", []byte("A=1\nB = 2\n")}}}, "x.env:2:2: "},
		{
			"too many variables",
			Layers{Request: []string{"A=1", "B=1"}, Filter: Filter{Source: "env_policy", MaxKeys: 1}},
			"2 variables, env_policy allows 1",
		},
		{"too many bytes", Layers{Request: []string{"A=123"}, Filter: Filter{MaxBytes: 4}}, "5 bytes"},
		{"a merged limit", Layers{Request: []string{"A=123"}, Filter: Filter{}.Merge(Filter{MaxBytes: 4})}, "5 bytes"},
		{"an injected NUL", Layers{Inject: []Inject{{"policy", map[string]string{"A": "\x00"}}}}, "env_inject of policy: A: "},
		{"an injected name with =", Layers{Inject: []Inject{{"policy", map[string]string{"A=B": ""}}}}, "env_inject of policy: "},
		{"a supervisor variable without its prefix", Layers{Supervisor: []Var{{"A", ""}}}, "AGENTSH_"},
		{"more than a command can be given", Layers{Request: slices.Repeat([]string{"A=1"}, 1), Inject: []Inject{{"config", many()}}}, "at most"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := Build(tt.l)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error is %v, want %q in it", err, tt.want)
			}
			if r.Env != nil {
				t.Errorf("an environment came with the error")
			}
		})
	}
}

func many() map[string]string {
	m := map[string]string{}
	for _, name := range strings.Fields("A B C D E F G H I") {
		m[name] = strings.Repeat("x", MaxVar-2)
	}
	return m
}

func TestDroppedVariablesDoNotCountForTheLimits(t *testing.T) {
	build1(t, Layers{Request: []string{"LD_PRELOAD=1", "A=1", "A=2"}, Filter: Filter{MaxKeys: 1}})
}

func TestBaselineIsAllowedByItsOwnRules(t *testing.T) {
	for _, v := range Baseline(Environment{Home: "/home/a", Shell: "/bin/bash"}) {
		if err := checkVar(v); err != nil || v.Value == "" {
			t.Errorf("%s=%q: %v", v.Name, v.Value, err)
		}
	}
}

// TestDropListPatternsHaveOneStarAtAnEnd: the index knows no others.
func TestDropListPatternsHaveOneStarAtAnEnd(t *testing.T) {
	n := 0
	for _, c := range dropList {
		for _, p := range strings.Fields(c.patterns) {
			n++
			if stem := strings.Trim(p, "*"); !ValidName(stem) || len(p)-len(stem) > 1 {
				t.Errorf("pattern %s", p)
			}
			if name := strings.Replace(p, "*", "X", 1); builtin(name) == "" {
				t.Errorf("%s is not dropped by %s", name, p)
			}
		}
	}
	if n < 150 {
		t.Errorf("only %d patterns", n)
	}
}

func FuzzBuild(f *testing.F) {
	f.Add("A=1\nB=2", "A=1\nexport B='x'", "A")
	f.Add("LD_PRELOAD=1\nSHLVL=0", "PATH=/x", "BASH_ENV")
	f.Fuzz(func(t *testing.T, request, file, injected string) {
		r, err := Build(Layers{
			Baseline: Baseline(Environment{}), Request: strings.Split(request, "\n"),
			Files:  []File{{"f.env", []byte(file)}},
			Inject: []Inject{{"policy", map[string]string{injected: "operator"}}},
		})
		if err != nil {
			return
		}
		if v, _ := r.value(injected); v != "operator" {
			t.Errorf("%s is %q in spite of env_inject", injected, v)
		}
		if v, _ := r.value("SHLVL"); v != "1" && injected != "SHLVL" {
			t.Errorf("SHLVL is %q", v)
		}
		seen := map[string]bool{}
		for i, e := range r.Env {
			name, _, ok := strings.Cut(e, "=")
			if !ok || !ValidName(name) || seen[name] || strings.ContainsRune(e, 0) {
				t.Errorf("entry %q", e)
			}
			if r.Origins[i].Name != name {
				t.Errorf("origin %d is of %s, not %s", i, r.Origins[i].Name, name)
			}
			seen[name] = true
			if strings.HasPrefix(name, "LD_") && name != injected {
				t.Errorf("%s came through", name)
			}
		}
	})
}

func BenchmarkBuild(b *testing.B) {
	request := make([]string, 100)
	for i := range request {
		request[i] = "VARIABLE_" + strings.Repeat("X", i) + "=value"
	}
	l := Layers{Baseline: Baseline(Environment{}), Request: request, Inject: []Inject{{"policy", map[string]string{"BASH_ENV": "/x"}}}}
	for b.Loop() {
		if _, err := Build(l); err != nil {
			b.Fatal(err)
		}
	}
}
