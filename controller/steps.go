package controller

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"agentsh/controller/bootstrap"
	"agentsh/controller/outside"
	"agentsh/controller/provider"
	"agentsh/controller/record"
	"agentsh/controller/runtime"
	"agentsh/controller/sandbox"
	"agentsh/controller/webhook"
)

// step is one named part of a run.
type step struct {
	name    string
	do      func(*run, context.Context) error
	check   bool            // [Check] takes it, too: what it does is undone
	salvage bool            // also runs after a failure if an agent ran, to extract its work
	when    func(*run) bool // reports whether the step runs; nil: always
}

// steps are the steps of a run in their order. The steps up to preflight write
// only the run record.
var steps = []step{
	{name: "load", do: (*run).load, check: true},
	{name: "expand", do: (*run).expand, check: true},
	{name: "preflight", do: (*run).preflight, check: true},
	{name: "scan_context", do: (*run).scanContext, check: true, when: hasScans},
	{name: "pre_script", do: (*run).preScript, when: func(r *run) bool { return r.plan.harness.PreScript.V != "" }},
	{name: "providers", do: (*run).providers, when: func(r *run) bool { return len(r.plan.harness.Providers) > 0 }},
	{name: "create_sandbox", do: (*run).createSandbox, check: true},
	{name: "wait_ready", do: (*run).waitReady, check: true},
	{name: "bootstrap", do: (*run).bootstrap, check: true},
	{name: "scan_sandbox", do: (*run).scanSandbox, check: true, when: hasScans},
	{name: stepAgentHost, do: openSide, check: true, when: func(r *run) bool { return r.program.onHost(r.o) }},
	{name: stepIterations, do: (*run).iterations},
	{name: "scan_output", do: (*run).scanOutput, salvage: true, when: hasScans},
	{name: "deliver", do: (*run).deliver, salvage: true, when: func(r *run) bool { return !r.blocked }},
	{name: postScript, do: (*run).postScript, when: func(r *run) bool { return r.plan.harness.PostScript.V != "" }},
}

// keepStep is the last step in the place of deleteStep after the failure of an agent,
// if the operator set --keep-sandbox.
var keepStep = step{name: "keep_sandbox", do: (*run).keepSandbox, salvage: true}

// deleteStep is the last step, also after a failure.
var deleteStep = step{name: record.StepDelete, do: (*run).deleteSandbox, salvage: true}

// StepNames are the names of the steps in their order, as in progress, records
// and errors. A run skips the steps that its harness does not need.
func StepNames() []string {
	names := make([]string, 0, len(steps)+1)
	for _, s := range steps {
		names = append(names, s.name)
	}
	return append(names, record.StepDelete)
}

// hasScans reports whether the harness has scans.
func hasScans(r *run) bool { return r.plan.scans() }

// scanners are the scanners of the run.
func (r *run) scanners() scanners {
	return newScanners(r.plan, r.program.canary, modelCommand{
		program: r.o.Model.Program, environ: r.o.Environ,
		outside: outside.Options{
			Policy: r.plan.policy, Config: r.o.Model.Config, Credentials: r.plan.current(),
			Events: filepath.Join(r.journal.dir.Path, "guard.jsonl"), OnEvent: r.counts.add,
		},
	})
}

// scripts runs the operator's scripts.
func (r *run) scripts() scripts {
	return scripts{
		dir: r.checkout.target.Dir, progress: r.progress,
		env: mergeEnv(r.o.Environ, []string{"FULLSEND_DIR=" + r.plan.harness.Root}, r.plan.runnerVars(), r.plan.schemaVars(),
			runVars(r.result.RunID, r.results.outputDir(), r.checkout.target.Dir, r.program.id.trace)),
	}
}

// load reads the harness with its layers and rejects settings that no step
// reads.
func (r *run) load(context.Context) error {
	h, backend, err := loadHarness(r.o.Harness, r.o.Load, r.o.Images, r.o.Backend, r.progress)
	if err != nil {
		return err
	}
	r.plan.harness, r.o.Backend = h, backend
	r.result.Backend, r.journal.record.Backend = r.o.Backend.Name(), r.o.Backend.Name()
	r.journal.record.Agent, r.journal.record.PostScript = h.AgentName(), h.PostScript.V != ""
	r.result.Agent, r.result.Role, r.result.Slug = h.AgentName(), h.Role.V, h.Slug.V
	r.result.About, r.result.Doc = h.Description.V, h.Doc.V
	r.result.Runtime = h.Runtime.Or(defaultRuntime)
	return nil
}

// expand replaces references to the host's variables.
func (r *run) expand(context.Context) (err error) {
	lookup, err := heldElsewhere(r.o.Backend, r.plan.harness, lookupIn(r.o.Environ))
	if err != nil {
		return err
	}
	if r.plan, err = expand(r.plan.harness, lookup); err != nil {
		return err
	}
	r.plan.unpinned = r.o.Agent.Unpinned
	if helpers := provider.Helpers(r.plan.harness); len(helpers) > 0 {
		r.plan.helped = newHelped(helpers, r.plan, helperRunner(r.o.Caller))
	}
	return nil
}

// fetchCredentials gets the values that helpers print.
func (r *run) fetchCredentials(ctx context.Context) error {
	if r.plan.helped == nil {
		return nil
	}
	if err := r.plan.helped.fetch(ctx); err != nil {
		return err
	}
	r.plan.credentials, r.plan.agent = r.plan.helped.current(), r.plan.helped.ofAgent()
	r.plan.spec.Credentials = r.plan.credentials
	return nil
}

// checkAll checks everything that can be checked before a sandbox exists.
func checkAll(ctx context.Context, r *run) error {
	err := r.findRepo(ctx)
	if err != nil {
		return err
	}
	id := runIdentity{r.result.RunID, traceparent(lookupIn(r.o.Environ))}
	if r.program, err = newProgram(r.plan, r.o.Harness, r.checkout, id); err != nil {
		return err
	}
	r.result.Trace, r.result.Hooks = r.program.trace, r.program.hooks
	if text := r.program.warning; text != "" {
		r.progress.warn("%s", text)
	}
	if r.o.Agent.Outside != nil && !r.o.Agent.Unpinned && !r.program.servers.Empty() {
		r.progress.warn("%s: mcp_servers: nothing starts them here: the agent of the harness does not run", r.plan.harness.MCPServers[0].Name.At)
	}
	r.findings = newFindings(r.plan.harness.Security, r.program.trace, r.progress)
	if err := checkModel(r.plan, r.o.Model.Program, r.progress); err != nil {
		return err
	}
	if r.plan.rules, err = readRules(r.plan.harness.Root); err != nil {
		return err
	}
	if !r.plan.harness.Policy.IsSet() {
		return noPolicy(r.o.Harness)
	}
	if r.plan, err = r.plan.withSpec(r.program, r.checkout.dir, r.result.RunID, r.o.KeepSandbox); err != nil {
		return err
	}
	if err := checkApprovals(r.plan, r.o.Approvals); err != nil {
		return err
	}
	if r.plan.spec.Identity, err = operatorIdentity(lookupIn(r.o.Environ), r.o.Repo); err != nil {
		r.progress.warn("git has no identity in the sandbox: %s", err)
	}
	if r.program.onHost(r.o) {
		if err := checkSide(r.plan, sideOptions(r)); err != nil {
			return err
		}
	}
	if err := r.openImage(ctx); err != nil {
		return err
	}
	if wrong := checkScripts(r.plan.harness); len(wrong) > 0 {
		return wrong[0]
	}
	if r.o.Out != "" {
		if r.results, err = newResults(r.o.Out, r.result.RunID); err != nil {
			return err
		}
		r.journal.record.Out, r.journal.record.Staging = r.results.out, r.results.staging
	}
	if r.plan.spec.NeedBytes, err = checkRoom(ctx, r.checkout, r.results); err != nil {
		return err
	}
	if err := checkBackend(ctx, r.o.Backend, r.plan.harness, r.plan.spec); err != nil {
		return err
	}
	return r.checkHost(ctx)
}

// preflight checks everything that can be checked before a sandbox exists, and gets what goes into it.
func (r *run) preflight(ctx context.Context) error {
	if err := checkAll(ctx, r); err != nil {
		return err
	}
	if r.plan.harness.PreScript.V == "" && r.plan.helped == nil { // a program of the operator may make the place reachable
		reach(ctx, r.o.Backend, r.result.RunID)
	}
	if err := r.cloneRepo(ctx); err != nil {
		return err
	}
	return r.fetchCredentials(ctx)
}

// reach begins to reach the place of the sandbox of a run.
func reach(ctx context.Context, b sandbox.Backend, runID string) {
	if to, can := b.(sandbox.Reacher); can {
		to.Reach(ctx, runID)
	}
}

// forget closes what reach opened, unless the sandbox has it.
func forget(b sandbox.Backend, runID string) {
	if to, can := b.(sandbox.Reacher); can {
		to.Forget(runID)
	}
}

// openImage finds the root file system of the sandbox.
func (r *run) openImage(ctx context.Context) error {
	if from, pulls := r.o.Backend.(sandbox.Puller); pulls {
		return pullImage(ctx, r, from)
	}
	root, err := openImage(ctx, r.plan.harness, r.program, r.o.Images)
	if err != nil || root.Dir == "" {
		return err
	}
	r.plan.spec.Image = root.Dir
	r.result.Image = &ResultImage{root.Name, root.Path, root.Digest}
	return nil
}

// scanContext scans the input of the agent, before anything is created.
func (r *run) scanContext(ctx context.Context) error {
	if err := scanContext(ctx, r.scanners(), r.plan, r.checkout, r.findings); err != nil {
		return err
	}
	return r.findings.check(0, failOpenHint)
}

// providers registers the names and digests of the run's providers in the local
// gateway.
func (r *run) providers(ctx context.Context) error {
	gateway, err := provider.OpenLocal(r.o.Gateway)
	if err != nil {
		return err
	}
	done, err := provider.Reconcile(ctx, gateway, provider.Wanted(r.plan.values))
	for _, c := range done {
		r.progress.output("stdout", "provider "+c.Definition.Name+": "+c.Action.String())
	}
	return err
}

// createSandbox creates the sandbox and starts its supervisor.
func (r *run) createSandbox(ctx context.Context) error {
	if err := r.relay(); err != nil {
		return err
	}
	defer forget(r.o.Backend, r.result.RunID)
	s, err := r.o.Backend.Create(ctx, r.plan.spec)
	if err != nil {
		return err
	}
	r.box = &box{sandbox: s}
	r.box.endOnForce(r.control.forced)
	r.journal.record.Sandbox, r.journal.record.Workdir, r.journal.record.Base = s.ID(), r.checkout.start, r.checkout.target.Head
	return errors.Join(r.storeUnfinished(), r.journal.write())
}

// storeUnfinished stores what is known of the run, where another controller may take it over.
func (r *run) storeUnfinished() error {
	if _, can := r.o.Backend.(sandbox.Taker); !can {
		return nil
	}
	return r.journal.storeUnfinished(unfinished{r.result, r.program.canary})
}

// defaultReady is the time limit for the first answer of a supervisor.
const defaultReady = 60 * time.Second

// maxDegraded bounds the mechanisms that a supervisor names.
const maxDegraded = 100

// fallbackHint is the hint to what a supervisor says of the fallbacks that would open its session.
func fallbackHint(message string) string {
	_, names, found := strings.Cut(message, "--degraded ")
	switch {
	case strings.Contains(names, "file_server"):
		return "a run needs FUSE where its sandbox is: file_server is no fallback of runs, see doc/harness.md"
	case found:
		return "degraded of the harness has the same names: see doc/harness.md"
	}
	return ""
}

// waitReady waits for the supervisor and starts to follow its events.
func (r *run) waitReady(ctx context.Context) error {
	limit := defaultReady
	if s := r.plan.harness.SandboxTimeout.V; s > 0 {
		limit = time.Duration(s) * time.Second
	}
	hello, err := r.box.ready(ctx, limit)
	if err == nil {
		err = errors.Join(checkRequire(r.plan.harness, hello.Version), checkRenewal(r.plan.helped, r.box.sandbox, hello.Version))
	}
	if err != nil {
		return fail(ExitSandbox, fallbackHint(err.Error()), err)
	}
	r.box.hello = hello
	if known, is := r.box.sandbox.(sandbox.Imaged); is && r.result.Image != nil {
		if digest, ok := known.Image(); ok {
			r.result.Image.Digest = digest
		}
	}
	r.result.Policy, r.result.Engine = hello.PolicyDigest, short(hello.Engine)
	r.result.Advisory = short(hello.Advisory)
	for _, name := range hello.Degraded[:min(len(hello.Degraded), maxDegraded)] {
		r.result.Degraded = append(r.result.Degraded, short(name))
	}
	r.result.Guarantees = guarantees(hello, r.o.Backend)
	r.box.follow(context.WithoutCancel(ctx), r.counts, r.progress)
	switch h := r.plan.helped; {
	case h == nil || !h.expires():
	case swapsElsewhere(r.o.Backend):
		r.progress.warn("the credentials of the sandbox expire and are not renewed there: %s has their first values", r.o.Backend.Name())
	default:
		to, _ := r.box.sandbox.(renewer) // checkRenewal has looked
		r.box.background(ctx, func(ctx context.Context) { h.renew(ctx, to, r.progress) })
	}
	if r.plan.policy.Approvals().Via == "webhook" {
		r.box.approve(ctx, r.o.Approvals, about(r.o, r.result), r.progress)
	}
	if err := r.box.listen(ctx, r.journal.dir.Path, r.control); err != nil {
		r.progress.warn("%v", err)
	}
	return nil
}

// about describes a run to who approves.
func about(o Options, result Result) webhook.Run {
	m := o.Member
	return webhook.Run{
		RunID: result.RunID, Agent: result.Agent, Harness: o.Harness, Repo: result.Repo,
		Batch: m.Batch, Name: m.Name, Labels: m.Labels,
	}
}

// bootstrap sends all files of the agent into the sandbox.
func (r *run) bootstrap(ctx context.Context) error {
	if err := swapPlaceholders(ctx, r.o.Backend, &r.plan, r.program.files); err != nil {
		return err
	}
	p, err := planSandbox(ctx, r.plan, r.program, r.checkout, r.progress)
	if err != nil {
		return err
	}
	r.result.Added = p.Added
	if err := r.storeUnfinished(); err != nil {
		return err
	}
	if err := bootstrap.Apply(ctx, r.box.sandbox, p); err != nil {
		return err
	}
	said, err := bootstrap.ReadScripts(ctx, r.box.sandbox, r.result.RunID, r.plan.files, r.program.invocation.Vars)
	for _, line := range said {
		r.progress.warn(".env: %s", runtime.Clean(line))
	}
	if err != nil {
		return fail(ExitConfiguration, "the agent has not started; allow sh and env in command_rules, or write plain NAME=value lines", err)
	}
	return nil
}

// scanSandbox scans the complete sandbox at the paths that the agent reads.
func (r *run) scanSandbox(ctx context.Context) error {
	before := r.findings.critical
	scan := sandboxScan{security: r.plan.harness.Security, repoDir: r.checkout.dir, runtimeFiles: r.program.files}
	found, err := scan.run(ctx, r.box.sandbox, r.result.RunID, r.plan)
	if err != nil {
		return err
	}
	r.findings.add("", scan.unknown(found, r.findings.list))
	return r.findings.check(before, failOpenHint)
}

// iterations runs the agent until its output is valid. Its work is extracted
// after each iteration, also if the agent failed or was stopped.
func (r *run) iterations(ctx context.Context) error {
	if err := r.results.create(); err != nil {
		return fmt.Errorf("make results: %w", err)
	}
	r.control.space = newSpace(r)
	loop := &agentLoop{
		harness: r.plan.harness, program: r.program, sandbox: r.box.sandbox, results: r.results, scripts: r.scripts(), progress: r.progress,
		legacy: r.runDirectory(), counts: r.counts, maxOutput: r.o.Agent.MaxOutput,
		extraction: newExtraction(r), elsewhere: elsewhere{instead: r.o.Agent.Outside, side: r.box.side},
	}
	if r.box.side != nil && r.o.Agent.Tools != nil {
		loop.elsewhere.tools = r.o.Agent.Tools(r.box.sandbox)
	}
	err := loop.run(ctx)
	if r.box.side != nil {
		if stopped := r.box.side.Stop(context.WithoutCancel(ctx)); stopped != nil {
			r.progress.warn("%v", stopped)
		}
	}
	r.work = loop.work
	r.result.took(loop.work, loop.iterations, loop.skipped)
	return err
}

// scanOutput scans the agent's work before it is published: the changed files,
// its output and log, and every change of its commits. A critical finding
// withholds the results.
func (r *run) scanOutput(ctx context.Context) error {
	ctx, cancel := r.control.salvage(ctx, "scanning the results")
	defer cancel()
	before := r.findings.critical
	r.blocked = true // also if the results cannot be read
	output := reportingScan{r.scanners().scanner(nil), r.findings}
	if err := scanResults(ctx, output, r.results.staging, r.checkout.clone, r.work); err != nil {
		return fail(ExitScan, "", fmt.Errorf("scan results: %w", err))
	}
	if err := r.findings.check(before, "nothing was delivered; the findings are in the run record: "+r.journal.dir.Path); err != nil {
		return err
	}
	r.blocked = false
	return nil
}

// keeps reports whether the sandbox outlives this run: the agent failed, nobody
// stopped the run, and the sandbox was not stopped before.
func (r *run) keeps() bool {
	var f *Failure
	return r.o.KeepSandbox > 0 && errors.As(r.failed, &f) && f.Code < exitSignalBase && len(r.result.Iterations) > 0 &&
		!r.box.stopping.Load() && r.box.sandbox.Cause() == nil
}

// keepSandbox leaves the sandbox of a failed agent to operators. Its supervisor
// goes on until the lease ends.
func (r *run) keepSandbox(ctx context.Context) error {
	if err := r.journal.storeAudit(ctx, r.box.sandbox); err != nil {
		r.progress.warn("%v", err)
	}
	until, err := r.box.keep(ctx, r.progress)
	if err != nil {
		return errors.Join(fmt.Errorf("keep the sandbox: %w", err), r.box.sandbox.Delete(ctx))
	}
	r.journal.record.KeptUntil = &until
	id := r.box.sandbox.ID()
	r.progress.warn("the sandbox is kept until %s: 'agentctl sandbox shell %s' opens a shell in it, "+
		"'agentctl sandbox delete %s' ends it", until.Local().Format(time.DateTime), id, id)
	return nil
}

// deleteSandbox removes the sandbox. Its audit log stays in the record's
// directory.
func (r *run) deleteSandbox(ctx context.Context) error {
	err := r.box.stop(ctx, r.progress)
	r.startDelete(ctx)
	return errors.Join(err, r.box.waitDeleted())
}

// startDelete stores the audit log of the stopped sandbox and that of its place, and deletes the
// sandbox in the background.
func (r *run) startDelete(ctx context.Context) {
	if r.box.deleted != nil {
		return
	}
	if err := r.journal.storeAudit(ctx, r.box.sandbox); err != nil {
		r.progress.warn("%v", err)
	}
	var err error
	if r.result.PlaceLog, err = r.journal.storePlaceLog(ctx, r.box.sandbox); err != nil {
		r.progress.warn("%v", err)
	}
	r.box.startDelete(ctx)
}
