package provider

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"agentsh/controller/harness"
)

const secret = "s3cr3t/+'\"value\nsecond line"

func load(t testing.TB, files map[string]string) *harness.Harness {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "a.md"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	h, ps := harness.Load(filepath.Join(dir, "a.yaml"), harness.Options{})
	if h == nil {
		t.Fatal(ps)
	}
	return h
}

const head = "agent: a.md\nrole: r\n"

func definitions(token string) []Definition {
	return []Definition{
		{Name: "one", Type: "t", Credentials: map[string]string{"TOKEN": token}, Endpoints: []string{"x"}},
		{Name: "two", Type: "t", Config: map[string]string{"region": "eu"}},
	}
}

func actions(changes []Change) string {
	var out []string
	for _, c := range changes {
		out = append(out, c.Action.String()+" "+c.Definition.Name)
	}
	return strings.Join(out, ", ")
}

func reconcile(t *testing.T, g Gateway, wanted []Definition, want string) {
	t.Helper()
	done, err := Reconcile(t.Context(), g, wanted)
	if err != nil || actions(done) != want {
		t.Errorf("%s, %v, want %s", actions(done), err, want)
	}
}

func TestReconcileCreatesUpdatesAndThenKeeps(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state", "gateway")
	g, err := OpenLocal(dir)
	if err != nil {
		t.Fatal(err)
	}
	reconcile(t, g, definitions("v1"), "create one, create two")
	reconcile(t, g, definitions("v1"), "keep one, keep two")
	reconcile(t, g, definitions("v2"), "update one, keep two")
	changed := definitions("v2")
	changed[1].Header = "X"
	reconcile(t, g, changed[1:], "update two")
	reconcile(t, g, nil, "")
	// Another process sees the same.
	again, err := OpenLocal(dir)
	if err != nil {
		t.Fatal(err)
	}
	reconcile(t, again, changed, "keep one, keep two")
	peek, err := PeekLocal(dir)
	if err != nil {
		t.Fatal(err)
	}
	actual, err := peek.Providers(t.Context())
	if got := actions(Plan(definitions("v3"), actual, peek.Digest)); err != nil || got != "update one, update two" {
		t.Errorf("%s %v", got, err)
	}
}

func TestTheStateFileHoldsNoValuesAndIsPrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gateway")
	g, err := OpenLocal(dir)
	if err != nil {
		t.Fatal(err)
	}
	reconcile(t, g, definitions(secret), "create one, create two")
	err = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v %v", name, info.Mode(), err)
		}
		if d.IsDir() {
			return nil
		}
		data, err := os.ReadFile(name)
		if scrubText(string(data), []string{secret}) != string(data) {
			t.Errorf("%s holds the value", name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	// A digest of another gateway is another digest: values cannot be tried.
	other, err := OpenLocal(filepath.Join(t.TempDir(), "other"))
	if err != nil {
		t.Fatal(err)
	}
	if d := definitions("v")[0]; g.Digest(d) == other.Digest(d) {
		t.Error("digests are not keyed")
	}
}

func TestPeekingWritesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "none")
	g, err := PeekLocal(dir)
	if err != nil {
		t.Fatal(err)
	}
	actual, err := g.Providers(t.Context())
	if err != nil || len(actual) != 0 {
		t.Errorf("%v %v", actual, err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

func TestABrokenGatewayIsAnError(t *testing.T) {
	for what, text := range map[string]string{
		"no JSON": "{", "another version": `{"version":2}`, "too large": strings.Repeat(" ", maxState+1), "empty": "",
	} {
		dir := t.TempDir()
		g, err := OpenLocal(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, stateName), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if done, err := Reconcile(t.Context(), g, definitions("v")); err == nil || done != nil {
			t.Errorf("%s: %v %v", what, done, err)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, keyName), []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenLocal(dir); err == nil {
		t.Error("a short key is taken")
	}
	open := t.TempDir()
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenLocal(open); err == nil || !strings.Contains(err.Error(), "others may write") {
		t.Errorf("%v", err)
	}
}

func TestControllersChangeTheGatewayOneAtATime(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	errs := make(chan error, 8)
	for i := range 8 {
		wg.Go(func() {
			g, err := OpenLocal(dir)
			if err == nil {
				_, err = Reconcile(t.Context(), g, []Definition{{Name: fmt.Sprintf("p%d", i), Type: "t"}})
			}
			errs <- err
		})
	}
	wg.Wait()
	for range 8 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	g, err := OpenLocal(dir)
	if err != nil {
		t.Fatal(err)
	}
	if actual, err := g.Providers(t.Context()); err != nil || len(actual) != 8 {
		t.Errorf("%d providers are left: %v", len(actual), err)
	}
}

func TestWaitingForTheLockEndsWithTheContext(t *testing.T) {
	dir := t.TempDir()
	a, err := OpenLocal(dir)
	if err != nil {
		t.Fatal(err)
	}
	unlock, err := a.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b, err := OpenLocal(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Reconcile(ctx, b, definitions("v")); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	reconcile(t, b, definitions("v"), "create one, create two")
}

// leaky is a gateway whose errors tell everything they know.
type leaky struct{ Gateway }

func (leaky) Apply(_ context.Context, c Change) error {
	v := c.Definition.Credentials["TOKEN"]
	if v == "" {
		return nil
	}
	return fmt.Errorf("run create --credential %q: %w", v, errors.New("bad value "+v+" / "+base64.StdEncoding.EncodeToString([]byte(v))))
}

// quiet is an error that says less than its cause.
type quiet struct{ cause error }

func (*quiet) Error() string   { return "quiet" }
func (q *quiet) Unwrap() error { return q.cause }

func TestErrorsHoldNoValues(t *testing.T) {
	g, err := OpenLocal(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []string{secret, "plainvalue", "ab"} {
		done, err := Reconcile(t.Context(), leaky{g}, definitions(v))
		if err == nil || done != nil {
			t.Fatalf("%v %v", done, err)
		}
		for e := err; e != nil; e = errors.Unwrap(e) {
			for _, form := range append(encodings(v), strings.Split(v, "\n")...) {
				if strings.Contains(e.Error(), form) {
					t.Errorf("%q holds %q", e, form)
				}
			}
		}
		if len(v) >= shortest && !strings.Contains(err.Error(), "create provider one: run create --credential \"***") {
			t.Errorf("%v", err)
		}
	}
	hidden := &quiet{errors.New("bad value " + secret)}
	if err := Scrub(hidden, []string{secret}); errors.Unwrap(err) != nil || err.Error() != "quiet" {
		t.Errorf("the cause can be taken out: %v", errors.Unwrap(err))
	}
	if err := Scrub(fmt.Errorf("%w: %w", context.Canceled, hidden), []string{secret}); errors.Is(err, hidden) {
		t.Errorf("a cause among several can be taken out: %v", err)
	}
	if err := Scrub(fmt.Errorf("%w: %w", context.Canceled, hidden), []string{"quiet"}, context.Canceled); !errors.Is(err, context.Canceled) {
		t.Errorf("a cause that is kept is lost: %v", err)
	}
	if err := errors.New("nothing in it"); !errors.Is(Scrub(err, []string{secret, ""}), err) {
		t.Error("an error without values changes")
	}
	if Scrub(nil, []string{"x"}) != nil {
		t.Error("no error becomes one")
	}
}

func FuzzNoValueSurvivesScrubbing(f *testing.F) {
	f.Add("error: abcd", "abcd", "bc")
	f.Add("x***y", "***", "*")
	f.Add("aabb", "ab", "aabb")
	f.Fuzz(func(t *testing.T, text, a, b string) {
		const own = "***(text withheld: it holds the value of a credential)"
		got := scrubText(text, []string{a, b})
		for _, v := range []string{a, b} {
			if len(v) >= shortest && strings.Contains(got, v) && !strings.Contains(own, v) {
				t.Errorf("%q holds %q", got, v)
			}
		}
	})
}

func TestWantedDefinitionsComeFromTheHarness(t *testing.T) {
	h := load(t, map[string]string{
		"a.yaml":           head + "providers: [b, a]\n",
		"providers/a.yaml": "name: a\ntype: t\ncredentials: {K: '${V}'}\nendpoints: [x, y]\nquery: key\n",
		"providers/b.yaml": "name: b\ntype: u\nconfig: {region: '${R:-eu}'}\n",
	})
	x, ps := h.Expand(func(name string) (string, bool) { return "v", name == "V" })
	if ps != nil {
		t.Fatal(ps)
	}
	if got, want := fmt.Sprint(Wanted(x)), "[{a t map[] map[K:v] [] [x y]  key false} {b u map[region:eu] map[] [] []   false}]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestLintNamesTheTierOfEverySecret(t *testing.T) {
	h := load(t, map[string]string{
		"a.yaml": head + `providers: [swapped, loose]
env:
  runner: {GH_TOKEN: "${X}", PLAIN: x, PUSH_TOKEN_SOURCE: app}
  sandbox: {API: "${SERVICE_API_KEY}", PASSWORD: hunter, MAX_TOKENS: 100, URL: "${URL}"}
host_files:
  - {src: tool.env, dest: /sandbox/workspace/.env.d/tool.env}
  - {src: "${GOOGLE_APPLICATION_CREDENTIALS}", dest: /tmp/gcp.json}
  - {src: notes.txt, dest: /tmp/server.pem}
  - {src: notes.txt, dest: /tmp/notes.txt}
`, "tool.env": "TOOL_SECRET=x\nTOOL_LEVEL=1\n", "notes.txt": "",
		"providers/s.yaml": "name: swapped\ntype: t\ncredentials: {K: '${V}'}\nendpoints: [x.example.com, y]\nheader: Authorization\n",
		"providers/l.yaml": "name: loose\ntype: t\ncredentials: {K: '${V}'}\n",
	})
	var got []string
	for _, p := range Lint(h) {
		got = append(got, fmt.Sprintf("%s:%d %s: %s", filepath.Base(p.At.File), p.At.Line, p.Severity, p.Message))
		if (p.Severity == harness.Warning) != (p.Hint != "") || strings.Contains(p.Message, "hunter") {
			t.Errorf("%+v", p)
		}
	}
	want := `a.yaml:5 note: secret GH_TOKEN: tier 1 (host only): only scripts on the host see env.runner
a.yaml:6 warning: secret API: tier 3 (token in the sandbox): every command in the sandbox sees env.sandbox
a.yaml:6 warning: secret PASSWORD: tier 3 (token in the sandbox): every command in the sandbox sees env.sandbox
a.yaml:9 warning: secret /tmp/gcp.json: tier 4 (file in the sandbox): every command in the sandbox can read the file
a.yaml:10 warning: secret /tmp/server.pem: tier 4 (file in the sandbox): every command in the sandbox can read the file
l.yaml:3 warning: secret loose.K: tier 3 (token in the sandbox): the provider names no endpoints, so no placeholder can be swapped
s.yaml:3 note: secret swapped.K: tier 2 (placeholder): swapped only at x.example.com, y
tool.env:1 warning: secret TOOL_SECRET: tier 3 (token in the sandbox): every command in the sandbox sees .env files`
	if strings.Join(got, "\n") != want {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), want)
	}
}
