package controller

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"time"

	"agentsh/controller/harness"
	"agentsh/controller/prescript"
	"agentsh/controller/runtime"
	"agentsh/controller/sandbox/host"
	"agentsh/internal/lazy"
	"agentsh/internal/statedir"
)

// scriptTimeout bounds one script of the operator unless the harness sets its
// time.
const scriptTimeout = 30 * time.Minute

// script is one script of the operator.
type script struct {
	at      harness.Origin
	path    string
	timeout harness.Value[int] // seconds; 0: scriptTimeout
	key     string             // that sets timeout
}

func (s script) limit() time.Duration {
	if s.timeout.V > 0 {
		return time.Duration(s.timeout.V) * time.Second
	}
	return scriptTimeout
}

// failure is the failure of the script. After its time limit the hint names the
// key that raises it.
func (s script) failure(code int, hint string, err error) error {
	if errors.Is(err, host.ErrTimeout) {
		if code != ExitPostScriptFailed {
			code = ExitTimeout
		}
		hint = "raise " + s.key + " in the harness" + strings.TrimSuffix("; "+hint, "; ")
	}
	return fail(code, hint, fmt.Errorf("%s: %w", s.at, err))
}

// scripts runs the operator's scripts in the target repository. Their output is
// shown line by line; its end is also in the result.
type scripts struct {
	dir      string
	env      []string
	progress progress
}

// run runs one script with additional variables.
func (s scripts) run(ctx context.Context, one script, more []string) (host.Result, error) {
	return s.runMasked(ctx, one, more, &mask{})
}

// runMasked is run. The mask has what the script wants hidden when it has ended.
func (s scripts) runMasked(ctx context.Context, one script, more []string, m *mask) (host.Result, error) {
	stdout, stderr := s.lines("stdout", m), s.lines("stderr", m)
	res, err := host.Run(ctx, host.Command{
		Argv: []string{one.path}, Dir: s.dir, Env: mergeEnv(s.env, more), Timeout: one.limit(), Stdout: stdout, Stderr: stderr,
	})
	stdout.Flush()
	stderr.Flush()
	return res, err
}

// runOK is like run, but an exit status other than 0 is an error.
func (s scripts) runOK(ctx context.Context, one script, more []string) error {
	res, err := s.run(ctx, one, more)
	if err == nil {
		err = res.Err()
	}
	return err
}

// runPre runs pre_script and reads what it said. dir gets the file of its output. What
// is shown of it lacks the values that the script wants hidden.
func (s scripts) runPre(ctx context.Context, one script, dir string) (*PreScript, error) {
	m := &mask{}
	said, err := s.readPre(ctx, one, dir, m)
	if err != nil || len(said.Values) == 0 {
		return nil, err
	}
	shown := &PreScript{Skipped: said.Skipped, Reason: m.cover(runtime.Clean(said.Reason)), Values: map[string]string{}, said: said}
	for name, value := range said.Values {
		shown.Values[name] = m.cover(runtime.Clean(value))
	}
	return shown, nil
}

func (s scripts) readPre(ctx context.Context, one script, dir string, m *mask) (prescript.Output, error) {
	f, err := os.CreateTemp(dir, "prescript-")
	if err != nil {
		return prescript.Output{}, err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	if err := f.Close(); err != nil {
		return prescript.Output{}, err
	}
	res, err := s.runMasked(ctx, one, prescript.Variables(f.Name()), m)
	switch {
	case err != nil:
		return prescript.Output{}, err
	case res.Signal == 0 && res.Code == prescript.Neutral:
		return prescript.ParseNeutral(f.Name(), m.cover(runtime.Clean(lastLine(string(res.Stdout))))), nil
	case res.Err() != nil:
		return prescript.Output{}, res.Err()
	}
	return prescript.Parse(f.Name())
}

// maskCommand tells a workflow to hide a value. Clean takes its first colon.
const maskCommand = ":add-mask::"

// mask hides values in what a script prints on one of its streams or, as far as
// it was read by then, on the other. It is safe for concurrent use.
type mask struct {
	mu     sync.Mutex
	values []string
}

// hide hides the values of a line. A value that the script wants hidden is one
// of them from then on.
func (m *mask) hide(line string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if value, found := strings.CutPrefix(line, maskCommand); found && value != "" {
		m.values = append(m.values, value)
	}
	return m.without(line)
}

// cover hides the values of a text that is no line of the script.
func (m *mask) cover(text string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.without(text)
}

// without is hide of known values. It is called with mu held.
func (m *mask) without(text string) string {
	for _, value := range m.values {
		text = strings.ReplaceAll(text, value, "***")
	}
	return text
}

func (s scripts) lines(stream string, m *mask) *runtime.Lines {
	return runtime.NewLines(func(line string) { s.progress.output(stream, m.hide(line)) })
}

// runnerVars is env.runner.
func (p plan) runnerVars() []string {
	var out []string
	for name, v := range p.values.Runner {
		out = append(out, name+"="+v.V)
	}
	sort.Strings(out)
	return out
}

// runVars describe the run to a script. Some are also set under the names that
// scripts of older runners read.
func runVars(runID, outputDir, repo, trace string) []string {
	var out []string
	for _, v := range [][2]string{{"RUN_ID", runID}, {"OUTPUT_DIR", outputDir}} {
		out = append(out, "AGENTSH_"+v[0]+"="+v[1], "FULLSEND_"+v[0]+"="+v[1])
	}
	out = append(out, "TARGET_REPO_DIR="+repo)
	if trace != "" {
		out = append(out, "TRACEPARENT="+trace)
	}
	return out
}

// mergeEnv merges environments; a later one overrides an earlier one. The result is sorted.
func mergeEnv(envs ...[]string) []string {
	vars := map[string]string{}
	for _, env := range envs {
		for _, v := range env {
			if name, value, ok := strings.Cut(v, "="); ok && name != "" {
				vars[name] = value
			}
		}
	}
	out := make([]string, 0, len(vars))
	for name, value := range vars {
		out = append(out, name+"="+value)
	}
	sort.Strings(out)
	return out
}

// lookupIn returns a function that looks up names in an environment.
func lookupIn(env []string) harness.Lookup {
	vars := map[string]string{}
	for _, v := range env {
		if name, value, ok := strings.Cut(v, "="); ok {
			vars[name] = value
		}
	}
	return func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	}
}

// traceRE matches a traceparent. See the Trace Context recommendation of the
// W3C, section 3.2.
var traceRE = lazy.Regexp(`^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// traceparent is the trace of the caller, or a new one.
func traceparent(lookup harness.Lookup) string {
	if v, ok := lookup("TRACEPARENT"); ok && traceRE().MatchString(v) {
		return v
	}
	var b [24]byte
	_, _ = rand.Read(b[:]) // never fails, see crypto/rand
	id := hex.EncodeToString(b[:])
	return "00-" + id[:32] + "-" + id[32:] + "-01"
}

// preScript runs the operator's script before the sandbox exists. The script
// may change the repository, so the commit is read again.
func (r *run) preScript(ctx context.Context) error {
	h := r.plan.harness
	one := script{h.PreScript.At, h.Path(h.PreScript), h.PreTimeout, "pre_script_timeout_seconds"}
	said, err := r.scripts().runPre(ctx, one, r.journal.dir.Work())
	if err != nil {
		return one.failure(ExitConfiguration, "the script runs before the sandbox exists; nothing was created", err)
	}
	r.result.PreScript = said
	if r.result.skipped() {
		r.progress.output("stdout", "skipped: "+cmp.Or(said.Reason, "pre_script gave no reason"))
		return r.relay()
	}
	before := r.checkout
	if err := r.openRepo(ctx, before.git); err != nil {
		return err
	}
	if r.checkout.target == before.target {
		r.checkout = before
		return nil
	}
	if err := statedir.RemoveTree(before.clone.Dir); err != nil {
		return err
	}
	if err := r.cloneRepo(ctx); err != nil || !hasScans(r) {
		return err
	}
	return r.scanContext(ctx)
}

// skipped reports whether pre_script asked that the run be skipped.
func (r *Result) skipped() bool { return r.PreScript != nil && r.PreScript.Skipped }

// relay tells the next steps of a workflow whether the run is skipped. A workflow
// that would decide otherwise fails the run.
func (r *run) relay() error {
	var said prescript.Output
	if p := r.result.PreScript; p != nil {
		said = p.said
	}
	if err := prescript.Relay(said, lookupIn(r.o.Environ)); err != nil {
		return fail(ExitConfiguration, "a later step of the workflow would not know whether the run was skipped", err)
	}
	return nil
}

// postScript runs the operator's script after the results are published.
func (r *run) postScript(ctx context.Context) error {
	h := r.plan.harness
	one := script{h.PostScript.At, h.Path(h.PostScript), h.PostTimeout, "post_script_timeout_seconds"}
	starter := r.scripts()
	vars := []string{"AGENTSH_BRANCH=" + r.result.Branch, "AGENTSH_RESULT=" + filepath.Join(r.results.out, resultName)}
	if inRunDirectory(h, h.PostScript) {
		from, more, err := r.foreignPost(ctx)
		if err != nil {
			return one.failure(ExitPostScriptFailed, "the results are in "+r.results.out, err)
		}
		starter, vars = from, append(vars, more...)
	}
	err := starter.runOK(ctx, one, vars)
	if err != nil {
		return one.failure(ExitPostScriptFailed, "the results are in "+r.results.out, err)
	}
	return nil
}
