package controller

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"agentsh/controller/harness"
	"agentsh/controller/image"
	"agentsh/controller/record"
	"agentsh/controller/sandbox"
	"agentsh/internal/layout"
	"agentsh/internal/lazy"
)

// onlyRuns says for each step that [Check] does not take what it may refuse.
var onlyRuns = map[string]string{
	"pre_script":  "pre_script may fail, and may change or skip the run",
	"providers":   "the local gateway may refuse the providers",
	"iterations":  "the agent may fail, or its output may not be valid",
	"scan_output": "a scan may withhold the results",
	"deliver":     "the results may not fit on the disk",
	"post_script": "post_script may fail",
}

// preflightCheck is what [Check] says of preflight_check, which is a command of the
// harness.
const preflightCheck = "preflight_check may fail"

// afterScript are the steps whose input pre_script may make or change.
var afterScript = map[string]string{
	"bootstrap":    "pre_script may change what is delivered to the sandbox",
	"scan_sandbox": "pre_script may change what is delivered to the sandbox",
}

// Check returns what [Run] would refuse before the agent starts. It takes the same
// steps up to there, in a sandbox that it deletes, and starts no program of the
// harness. onlyRun lists what only a run can know. [Options.State] must be a directory
// of its own, which the caller removes.
func Check(ctx context.Context, o Options) (onlyRun []string, found harness.Problems) {
	o.Environ = slices.DeleteFunc(slices.Clone(o.Environ), func(v string) bool { return strings.HasPrefix(v, "GITHUB_OUTPUT=") })
	r := &run{o: o, result: newResult(o)}
	r.counts = newCounts(nil)
	ctx, r.control = newControl(ctx, o.Force)
	defer r.control.close()
	undo, err := madeAbove(o.Out)
	if err == nil {
		r.result.RunID = record.NewRunID(r.result.Started)
		r.journal, err = newJournal(o, r.result.RunID, r.result.Started)
	}
	if err != nil {
		return nil, problemsOf(o.Harness, asFailure(ctx, "record", err))
	}
	onlyRun, err = r.checkSteps(ctx)
	if err != nil {
		found = problemsOf(o.Harness, asFailure(ctx, "", err))
	}
	if err := r.undo(ctx, undo); err != nil {
		found = append(found, problemsOf(o.Harness, &Failure{Err: err, Hint: hintFor(err)})...)
	}
	return onlyRun, found
}

// undo removes what the steps of a check made.
func (r *run) undo(ctx context.Context, made func() error) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), cleanupTime, errors.New("cleaning up took too long"))
	defer cancel()
	forget(r.o.Backend, r.result.RunID)
	var err error
	if r.box != nil {
		err = errors.Join(closeSide(ctx, r), r.step(ctx, deleteStep))
	}
	return errors.Join(err, r.results.discard(), made(), r.journal.dir.RemoveWork(), r.journal.dir.Close())
}

// checkSteps takes the steps of a check. It returns the first failure.
func (r *run) checkSteps(ctx context.Context) (onlyRun []string, err error) {
	for _, s := range steps {
		if err != nil && s.check || err == nil && s.when != nil && !s.when(r) {
			continue
		}
		why := onlyRuns[s.name]
		if err == nil && r.plan.harness != nil && r.plan.harness.PreScript.V != "" && afterScript[s.name] != "" {
			why = afterScript[s.name]
		}
		if why != "" {
			onlyRun = append(onlyRun, s.name+": "+why)
			continue
		}
		if err = r.step(ctx, s); err == nil && s.name == "expand" {
			onlyRun = append(onlyRun, r.leaveOutPrograms()...)
		}
	}
	return onlyRun, err
}

// leaveOutPrograms removes the programs of preflight_check and of providers from the plan, and says what
// they may refuse.
func (r *run) leaveOutPrograms() (onlyRun []string) {
	h := *r.plan.harness
	if h.PreflightCheck.V != "" || h.ValidationLoop.PreflightCheck.V != "" {
		onlyRun = append(onlyRun, "preflight: "+preflightCheck)
	}
	h.PreflightCheck, h.ValidationLoop.PreflightCheck = harness.Text{}, harness.Text{}
	r.plan.harness = &h
	if r.plan.helped != nil {
		onlyRun = append(onlyRun, "preflight: the command of a provider may fail")
		r.plan.helped = nil
	}
	return onlyRun
}

// madeAbove returns a function that removes the directories above a name that do not
// exist now, if they are empty then.
func madeAbove(name string) (undo func() error, err error) {
	dir, err := filepath.Abs(name)
	if err != nil {
		return nil, err
	}
	var missing []string
	for dir = filepath.Dir(dir); ; dir = filepath.Dir(dir) {
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		missing = append(missing, dir)
	}
	return func() error {
		for _, dir := range missing {
			if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		return nil
	}, nil
}

// position matches the position at the start of a message. ofSandbox is what precedes
// one of the supervisor, with the id of a sandbox that is no more.
var (
	position  = lazy.Regexp(`^([^\s:][^:\n]*):(\d+):(\d+): (.*)$`)
	ofSandbox = lazy.Regexp(`^(sandbox [A-Za-z0-9-]+: |start supervisor: )?sandbox is gone: supervisor: |^sandbox [A-Za-z0-9-]+: `)
)

// problemsOf returns the problems of a failure. One without a position has that of the
// harness.
func problemsOf(file string, f *Failure) harness.Problems {
	if len(f.Problems) > 0 {
		return f.Problems
	}
	var ps harness.Problems
	text := ofSandbox().ReplaceAllString(f.Err.Error(), "")
	for line := range strings.SplitSeq(text, "\n") {
		p := harness.Problem{
			At:       harness.Origin{File: file, Line: 1, Column: 1},
			Severity: harness.Error, Rule: harness.RuleRun, Message: line, Hint: f.Hint,
		}
		if m := position().FindStringSubmatch(line); m != nil {
			p.At.File, p.Message = m[1], m[4]
			p.At.Line, _ = strconv.Atoi(m[2])
			p.At.Column, _ = strconv.Atoi(m[3])
		} else if line == "policy:" || len(ps) > 0 && strings.HasPrefix(line, " ") {
			if line != "policy:" { // it belongs to the line before
				ps[len(ps)-1].Message += "; " + strings.TrimSpace(line)
			}
			continue
		}
		ps = append(ps, p)
	}
	return ps
}

// Lint returns what the files of a harness have that every run would refuse: its
// policy, its scripts and the rules of the organisation. check is what the backend says of
// a sandbox without its place; nil: nothing.
func Lint(file string, h *harness.Harness, check func(sandbox.Spec) error) harness.Problems {
	var ps harness.Problems
	add := func(err error) {
		if err != nil {
			ps = append(ps, problemsOf(file, asFailure(context.Background(), "lint", err))...)
		}
	}
	isPolicy := func(p harness.Problem) bool { return p.At == h.Policy.At }
	switch {
	case !h.Policy.IsSet():
		p := harness.Problem{
			At: harness.Origin{File: file, Line: 1, Column: 1}, Severity: harness.Error, Rule: harness.RuleRequired,
			Message: "the harness has no policy", Hint: policyHint,
		}
		if h.Forge != "" {
			p.Message += " for the forge " + h.Forge
		}
		ps = append(ps, p)
	case !slices.ContainsFunc(h.Refusals(), isPolicy): // else the loader warns of it, as of a URL
		add(lintPolicy(file, h, check))
	}
	_, err := readRules(h.Root)
	add(err)
	for _, err := range checkScripts(h) {
		add(err)
	}
	_, err = planServers(h, false)
	add(err)
	if h.Backend.IsSet() {
		ps = append(ps, h.NotOf(h.Backend.V, harness.Error)...)
	}
	return ps
}

// lintPolicy returns what a run refuses about the policy of a harness, or about its sandbox. Names of files in the
// repository and values of the host are not known.
func lintPolicy(file string, h *harness.Harness, check func(sandbox.Spec) error) error {
	const repo = layout.Workspace + "/repo"
	p := plan{harness: h, values: &harness.Expanded{}}
	prog, err := newProgram(p, file, checkout{dir: repo, start: repo}, runIdentity{})
	if err != nil { // see planServers; the rest is that of a run
		_, err := loadPolicy(h.Path(h.Policy), runRules{profiles: h.Profiles}, policyVars(repo))
		return err
	}
	if p, err = p.withSpec(prog, repo, "", 0); err != nil || check == nil {
		return err
	}
	p.spec.Container = container(h.Container, sandbox.Image{Name: h.Image.V, ID: cmp.Or(h.Image.V, "of the run")})
	p.spec.Container.Cluster = cluster(h.Kubernetes)
	if err := check(p.spec); err != nil {
		return fail(ExitConfiguration, "", ofBackend(h.Backend.V, h, err))
	}
	return nil
}

// policyHint is what to do about a harness without a policy.
const policyHint = "name one: policy: FILE"

// noPolicy is the failure of a run without a policy.
func noPolicy(file string) error { return badConfig(policyHint, "%s: the harness has no policy", file) }

// Described is what a harness says about its runs.
type Described struct {
	Agent   string
	Runtime string
	Backend sandbox.Backend // that the runs will have
	// Provider is who serves the model, as far as the harness says it: see [ModelProvider].
	Provider string
}

// Describe reads a harness as a run of it would, with the problems that the run would refuse.
func Describe(file string, load harness.Options, images image.Config, b sandbox.Backend) (Described, harness.Problems) {
	h, backend, err := loadHarness(file, load, images, b, nil)
	if err != nil {
		return Described{}, problemsOf(file, asFailure(context.Background(), "load", err))
	}
	var check func(sandbox.Spec) error
	if of, can := backend.(sandbox.SpecChecker); can {
		check = of.CheckSpec
	}
	return Described{
		Agent: h.AgentName(), Runtime: h.Runtime.Or(defaultRuntime), Backend: backend, Provider: ModelProvider(h),
	}, Lint(file, h, check)
}

// providersOf are the providers of the models of runtimes that have one.
var providersOf = map[string]string{"claude": "anthropic", "codex": "openai", "gemini": "google"}

// ModelProvider is who serves the model of a harness: the part of model before a slash, or
// the one that the runtime has. It is empty if nothing says it.
func ModelProvider(h *harness.Harness) string {
	if name, _, cut := strings.Cut(h.Model.V, "/"); cut {
		return name
	}
	return providersOf[h.Runtime.Or(defaultRuntime)]
}
