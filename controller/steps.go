package controller

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"agentsh/internal/layout"

	"golang.org/x/sys/unix"

	"agentsh/controller/git"
	"agentsh/controller/harness"
	"agentsh/controller/record"
	"agentsh/controller/runtime"
	"agentsh/controller/sandbox"
	"agentsh/internal/statedir"
	"agentsh/internal/wire"
)

// load reads the harness with its layers and refuses what no step acts on.
func (r *run) load(context.Context) error {
	h, ps := harness.Load(r.o.Harness, r.o.Load)
	if h != nil {
		ps = append(ps, h.Refusals()...)
	}
	for _, p := range ps {
		if p.Severity != harness.Error && !refused(ps, p) {
			r.warn("%s", warningText(p))
		}
	}
	if ps.HasErrors() {
		return problemsFailure(ps)
	}
	r.harness = h
	r.result.Agent, r.result.Role, r.result.Slug = h.AgentName(), h.Role.V, h.Slug.V
	r.record.Agent = r.result.Agent
	r.result.About, r.result.Doc = h.Description.V, h.Doc.V
	r.result.Runtime = h.Runtime.Or(defaultRuntime)
	return nil
}

// defaultRuntime is the runtime of a harness that names none.
const defaultRuntime = "claude"

// refused reports whether a warning is also among the errors.
func refused(ps harness.Problems, warning harness.Problem) bool {
	for _, p := range ps {
		if p.Severity == harness.Error && p.At == warning.At && p.Message == warning.Message {
			return true
		}
	}
	return false
}

func warningText(p harness.Problem) string {
	text := p.At.String() + ": " + p.Message
	if p.Hint != "" {
		text += " (" + p.Hint + ")"
	}
	return text
}

// expand replaces the references to the host's variables.
func (r *run) expand(context.Context) error {
	x, ps := r.harness.Expand(r.lookup)
	if !ps.HasErrors() {
		ps = r.credentials(x)
	}
	if !ps.HasErrors() {
		r.files, ps = x.Files()
	}
	if ps.HasErrors() {
		return problemsFailure(ps)
	}
	r.x = x
	return nil
}

// preflight checks all that can be checked before anything is created.
func (r *run) preflight(ctx context.Context) error {
	var err error
	if r.git, err = git.New(r.dir.Work()); err != nil {
		return err
	}
	if err := r.openRepo(ctx); err != nil {
		return err
	}
	if err := r.checkRuntime(); err != nil {
		return err
	}
	if err := r.checkModel(); err != nil {
		return err
	}
	if err := r.readRules(); err != nil {
		return err
	}
	if !r.harness.Policy.IsSet() {
		return badConfig("name one: policy: FILE", "%s: the harness has no policy", r.o.Harness)
	}
	vars := policyVars(r.repoDir)
	rules, err := loadPolicy(r.harness.Path(r.harness.Policy), ownRules{r.ownCommands(), r.guarded()}, vars)
	if err != nil {
		return err
	}
	if err := r.checkEnv(rules); err != nil {
		return err
	}
	for _, script := range []harness.Text{r.harness.PreScript, r.harness.PostScript, r.harness.ValidationLoop.Script} {
		if err := r.checkScript(script); err != nil {
			return err
		}
	}
	if r.results, err = newResults(r.o.Out, r.result.RunID); err != nil {
		return err
	}
	r.cleanup = append(r.cleanup, r.results.discard)
	r.record.Out, r.record.Staging = r.results.out, r.results.staging
	r.spec = sandbox.Spec{
		RunID:       r.result.RunID,
		Policy:      sources(rules),
		Vars:        vars,
		EnvDir:      layout.EnvDir,
		Home:        layout.Home,
		Program:     r.showsProgram(),
		Credentials: r.secrets,
	}
	if err := r.checkBackend(ctx); err != nil {
		return err
	}
	return r.cloneRepo(ctx)
}

// checkBackend asks for room on the disks and for what the backend needs.
func (r *run) checkBackend(ctx context.Context) error {
	size, err := r.target.Size(ctx)
	if err != nil {
		return err
	}
	r.spec.NeedBytes = needBytes + 2*size // on the host, and in the sandbox
	if err := statedir.CheckRoom(filepath.Dir(r.results.out), needBytes); err != nil {
		return fail(ExitSandbox, "free some disk space, or name another directory with --out", err)
	}
	if err := r.o.Backend.Check(ctx, r.spec); err != nil {
		hint := ""
		if errors.Is(err, fs.ErrNotExist) {
			hint = "install agentsh beside agentctl, or name it with --agentsh"
		}
		return fail(ExitSandbox, hint, fmt.Errorf("backend %s: %w", r.o.Backend.Name(), err))
	}
	return nil
}

// needBytes is the disk space, in bytes, that a run asks for besides that of
// the repository.
const needBytes = 32 << 20

// openRepo finds the commit the agent starts from.
func (r *run) openRepo(ctx context.Context) error {
	t, err := r.git.Open(ctx, r.o.Repo)
	switch {
	case errors.Is(err, git.ErrNotRepository):
		return badConfig("name the top directory of a git repository with --repo, or make one: git init && git add -A && git commit", "%w", err)
	case errors.Is(err, fs.ErrNotExist):
		return badConfig("name the top directory of a git repository with --repo", "repository: %w", err)
	case err != nil && ctx.Err() == nil:
		return badConfig("the agent starts from a commit: git commit", "repository: %w", err)
	case err != nil:
		return err
	}
	r.target = t
	r.result.Repo, r.result.Base = t.Dir, t.Head
	r.record.Repo = t.Dir
	r.repoDir = path.Join(layout.Workspace, repoName(t.Dir))
	return nil
}

// cloneRepo makes the repository that goes into the sandbox.
func (r *run) cloneRepo(ctx context.Context) error {
	var err error
	if r.clone, err = r.target.Clone(ctx, filepath.Join(r.dir.Work(), "repo"), r.harness.AgentName()); err != nil {
		return fail(ExitSandbox, "", fmt.Errorf("clone repository: %w", err))
	}
	listed := make(chan error, 1)
	go func() {
		var err error
		r.tree, err = r.clone.Tree(ctx)
		listed <- err
	}()
	dirty, err := r.clone.Uncommitted(ctx)
	if err = errors.Join(err, <-listed); err != nil {
		return err
	}
	if len(dirty) == 0 {
		return nil
	}
	list := few(dirty)
	if !r.o.AllowDirty {
		return badConfig("commit or stash them, or leave them out with --allow-dirty",
			"%s has changes that are not committed, and the agent would not see them: %s", r.o.Repo, list)
	}
	r.warn("the agent does not see what is not committed: %s", list)
	return nil
}

// few names a few of many paths.
func few(paths []string) string {
	const most = 5
	shown := paths
	if len(shown) > most {
		shown = shown[:most]
	}
	text := runtime.Clean(strings.Join(shown, ", "))
	if n := len(paths) - len(shown); n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return text
}

// checkRuntime finds the runtime and asks it what the harness lacks.
func (r *run) checkRuntime() error {
	at := r.harness.Runtime.At
	if at.IsZero() {
		at = harness.Origin{File: r.o.Harness, Line: 1, Column: 1}
	}
	rt, err := runtime.Lookup(r.result.Runtime)
	if err == nil {
		err = r.makeInvocation()
	}
	if err == nil {
		err = rt.Check(r.invoke)
	}
	if err != nil {
		return badConfig("write runtime: and its settings in the harness", "%s: %w", at, err)
	}
	r.result.Trace = r.traceOf()
	if err := r.planHooks(rt); err != nil {
		return err
	}
	files, err := rt.Files(r.invoke)
	r.own = append(r.own, files...)
	if err != nil {
		return badConfig("write runtime: and its settings in the harness", "%s: %w", at, err)
	}
	r.runtime = rt
	return nil
}

// maxDefinition bounds an agent definition, in bytes.
const maxDefinition = 1 << 20

// makeInvocation is what every iteration's invocation begins with.
func (r *run) makeInvocation() error {
	text, err := record.ReadFile(r.harness.Path(r.harness.Agent), maxDefinition)
	if err != nil {
		return fmt.Errorf("agent definition: %w", err)
	}
	r.invoke = runtime.Invocation{
		Agent: r.harness.AgentName(), Definition: path.Join(layout.ConfigDir, "agents", r.harness.AgentName()+".md"), Text: string(text),
		Model: r.harness.Model.V, Effort: r.harness.Effort.V,
		ConfigDir: layout.ConfigDir, HomeDir: layout.Home, RepoDir: r.repoDir, OutputDir: layout.Output,
		RunID: r.result.RunID, Trace: traceparent(r.lookup),
	}
	for _, a := range r.harness.Command {
		r.invoke.Argv = append(r.invoke.Argv, a.V)
	}
	for _, s := range r.harness.Skills {
		r.invoke.Skills = append(r.invoke.Skills, s.Name())
	}
	for _, p := range r.harness.Plugins {
		r.invoke.Plugins = append(r.invoke.Plugins, path.Join(layout.ConfigDir, "plugins", p.Name()))
	}
	return nil
}

// checkScript reports a script that could not be started later.
func (r *run) checkScript(script harness.Text) error {
	if !script.IsSet() || script.V == "" {
		return nil
	}
	name := r.harness.Path(script)
	info, err := os.Stat(name)
	if err != nil {
		return badConfig("", "%s: %w", script.At, err)
	}
	if !info.Mode().IsRegular() || unix.Access(name, unix.X_OK) != nil {
		return badConfig("chmod +x "+shortName(name), "%s: %s is not an executable file", script.At, shortName(name))
	}
	return nil
}

// preScript runs the operator's script before the sandbox exists. It may
// change the target, so the repository is looked at again.
func (r *run) preScript(ctx context.Context) error {
	res, err := r.script(ctx, r.harness.PreScript, nil)
	if err == nil {
		err = res.Err()
	}
	if err != nil {
		return fail(
			ExitConfiguration,
			"the script runs before the sandbox exists; nothing was created",
			fmt.Errorf("%s: %w", r.harness.PreScript.At, err),
		)
	}
	before := r.target
	if err := r.openRepo(ctx); err != nil || r.target == before {
		return err
	}
	if err := os.RemoveAll(r.clone.Dir); err != nil {
		return err
	}
	if err := r.cloneRepo(ctx); err != nil || !r.scans() {
		return err
	}
	return r.scanContext(ctx)
}

// createSandbox makes the place and starts its supervisor.
func (r *run) createSandbox(ctx context.Context) error {
	box, err := r.o.Backend.Create(ctx, r.spec)
	if err != nil {
		return err
	}
	r.box = box
	r.record.Sandbox = box.ID()
	return r.dir.Write(r.record)
}

// defaultReady is how long a sandbox may take to answer.
const defaultReady = 60 * time.Second

// waitReady waits for the supervisor and begins to follow its events.
func (r *run) waitReady(ctx context.Context) error {
	limit := defaultReady
	if s := r.harness.SandboxTimeout.V; s > 0 {
		limit = time.Duration(s) * time.Second
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the sandbox did not answer within %s", limit))
	defer cancel()
	hello, err := r.box.Ready(ctx)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = errors.Join(cause, err)
		}
		return fmt.Errorf("sandbox %s: %w", r.box.ID(), err)
	}
	r.result.Policy = hello.PolicyDigest
	r.events = make(chan struct{})
	go r.follow(context.WithoutCancel(ctx))
	if err := r.listenForOperators(ctx); err != nil {
		r.warn("%v", err)
	}
	return nil
}

// follow counts events until the supervisor is gone; stopSandbox waits for it.
// A stream that breaks early loses nothing: the log is read again at the end.
func (r *run) follow(ctx context.Context) {
	defer close(r.events)
	err := r.box.Events(ctx, 0, func(e wire.Event) error {
		r.tally.add(e)
		return nil
	})
	if err != nil && !r.stopping.Load() && r.sandboxGone() == nil {
		r.warn("the event stream ended early: %v", err)
	}
}

// sandboxGone is why the supervisor ended, when it did without being told to.
// A broken connection and the end come close together: it waits a moment.
func (r *run) sandboxGone() error {
	if r.box == nil || r.stopping.Load() {
		return nil
	}
	t := time.NewTimer(time.Second)
	defer t.Stop()
	select {
	case <-r.box.Gone():
		return r.box.Cause()
	case <-t.C:
		return nil
	}
}

// stopSandbox ends everything in the sandbox.
func (r *run) stopSandbox(ctx context.Context) error {
	r.stopping.Store(true)
	r.attached.Stop()
	err := r.box.Stop(ctx)
	<-r.events
	return errors.Join(err, r.attached.Close())
}

// deleteSandbox removes the sandbox. Its audit log stays with the record.
func (r *run) deleteSandbox(ctx context.Context) error {
	err := r.stopSandbox(ctx)
	r.beginDelete(ctx)
	return errors.Join(err, <-r.deleted)
}

// beginDelete removes a sandbox that was stopped, beside what follows;
// deleteSandbox waits for its end.
func (r *run) beginDelete(ctx context.Context) {
	if r.deleted != nil {
		return
	}
	if err := r.storeAudit(ctx); err != nil {
		r.warn("%v", err)
	}
	r.deleted = make(chan error, 1)
	go func() { r.deleted <- r.box.Delete(context.WithoutCancel(ctx)) }()
}

// postScript runs the operator's script after the results are out.
func (r *run) postScript(ctx context.Context) error {
	res, err := r.script(ctx, r.harness.PostScript, []string{
		"AGENTSH_BRANCH=" + r.result.Branch, "AGENTSH_RESULT=" + filepath.Join(r.results.out, resultName),
	})
	if err == nil {
		err = res.Err()
	}
	if err != nil {
		return fail(ExitPostScriptFailed, "the results are in "+r.results.out, fmt.Errorf("%s: %w", r.harness.PostScript.At, err))
	}
	return nil
}
