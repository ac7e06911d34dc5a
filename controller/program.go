package controller

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"agentsh/controller/agenthost"
	"agentsh/controller/harness"
	"agentsh/controller/hook"
	"agentsh/controller/record"
	"agentsh/controller/runtime"
	"agentsh/controller/servers"
	"agentsh/internal/layout"
)

// program is the agent's program with its configuration for a run.
type program struct {
	runtime    runtime.Runtime
	invocation runtime.Invocation // without the fields of a single iteration
	files      []runtime.File     // configuration of the program; no command may change it
	besides    []runtime.File     // files of a program on the host, besides those of its runtime
	hooks      Hooks
	servers    servers.Plan // that the program starts in the sandbox
	canary     string       // hidden in the agent's definition; empty: none
	outside    bool         // the program runs on the host; runtime is a [runtime.Outsider]
	trace      string       // id that findings share; empty: not enabled in the harness
	warning    string       // empty: none
	id         runIdentity
}

// runIdentity identifies a run to other programs.
type runIdentity struct {
	runID string
	trace string // TRACEPARENT
}

// newProgram finds the runtime of a harness and configures it. file is the file
// of the harness.
func newProgram(p plan, file string, c checkout, id runIdentity) (program, error) {
	at := p.harness.Runtime.At
	if at.IsZero() {
		at = harness.Origin{File: file, Line: 1, Column: 1}
	}
	bad := func(err error) error {
		return badConfig("write runtime: and its settings in the harness", "%s: %w", at, err)
	}
	rt, err := runtime.Lookup(p.harness.Runtime.Or(defaultRuntime))
	if err != nil {
		return program{}, bad(err)
	}
	in, err := newInvocation(p.harness, c, id)
	if err == nil {
		err = rt.Check(in)
	}
	if err != nil {
		return program{}, bad(err)
	}
	prog := program{runtime: rt, invocation: in, id: id, outside: p.harness.Outside()}
	if prog.outside {
		if err := checkOutsider(rt, in); err != nil {
			return program{}, bad(err)
		}
	}
	prog.invocation.Vars = agentVars(p, c.dir, id)
	if p.harness.Security.Trace.Enabled.Or(false) {
		prog.trace = findingsTrace(id)
	}
	if err := prog.addHooks(p); err != nil {
		return prog, err
	}
	if err := prog.addServers(p); err != nil {
		return prog, err
	}
	if prog.outside {
		prog.invocation.Text += string(canaryNote(prog.canary))
		return prog, nil
	}
	files, err := rt.Files(prog.invocation)
	if err != nil {
		return prog, bad(err)
	}
	prog.files = append(prog.files, files...)
	return prog, nil
}

// ownProgram reports whether the supervisor's program is in the sandbox.
func (p program) ownProgram(from plan) bool { return from.scans() || !p.servers.Empty() }

// addServers plans the MCP servers of the harness.
func (p *program) addServers(from plan) error {
	h := from.harness
	var err error
	if p.servers, err = planServers(h, from.unpinned); err != nil {
		return err
	}
	if p.servers.Empty() {
		return nil
	}
	file, err := p.servers.File()
	if err != nil {
		return err
	}
	p.files, p.invocation.Servers = append(p.files, file), p.servers.Started()
	return nil
}

// planServers plans the MCP servers of a harness; with unpinned their pins are not read.
func planServers(h *harness.Harness, unpinned bool) (servers.Plan, error) {
	p, err := servers.New(h, unpinned, record.ReadFile)
	if err != nil {
		return p, badConfig("run 'agentctl mcp-pins "+h.File+"' and look at what it writes", "%w", err)
	}
	return p, nil
}

// checkOutsider rejects an agent that cannot work on the host.
func checkOutsider(rt runtime.Runtime, in runtime.Invocation) error {
	out, can := rt.(runtime.Outsider)
	if !can {
		return fmt.Errorf("container.harness: false: the runtime %s works in the sandbox only", rt.Name())
	}
	return out.CheckOutside(in)
}

// agentVars are variables of the run that agents of other runners read, too.
func agentVars(p plan, repoDir string, id runIdentity) []string {
	vars := []string{
		"FULLSEND_TARGET_REPO_DIR=" + repoDir, "FULLSEND_ROLE=" + p.harness.Role.V, "FULLSEND_TRACE_ID=" + findingsTrace(id),
	}
	if id.trace != "" {
		vars = append(vars, "TRACEPARENT="+id.trace)
	}
	if slug := p.harness.Slug.V; slug != "" {
		vars = append(vars, "FULLSEND_SLUG="+slug)
	}
	if p.schema() != "" {
		vars = append(vars, "FULLSEND_OUTPUT_SCHEMA="+layout.OutputSchema)
	}
	if name := p.values.Runner["FULLSEND_OUTPUT_FILE"].V; name != "" {
		vars = append(vars, "FULLSEND_OUTPUT_FILE="+name)
	}
	return vars
}

// maxDefinition bounds an agent definition, in bytes.
const maxDefinition = 1 << 20

// newInvocation makes the part of the invocation that all iterations share.
func newInvocation(h *harness.Harness, c checkout, id runIdentity) (runtime.Invocation, error) {
	text, err := record.ReadFile(h.Path(h.Agent), maxDefinition)
	if err != nil {
		return runtime.Invocation{}, fmt.Errorf("agent definition: %w", err)
	}
	in := runtime.Invocation{
		Agent: h.AgentName(), Definition: path.Join(layout.ConfigDir, "agents", h.AgentName()+".md"), Text: string(text),
		Model: h.Model.V, Effort: h.Effort.V,
		Directories: runtime.Directories{RepoDir: c.dir, Dir: c.start}, RunID: id.runID,
	}
	for _, a := range h.Command {
		in.Argv = append(in.Argv, a.V)
	}
	for _, s := range h.Skills {
		in.Skills = append(in.Skills, s.Name())
	}
	for _, p := range h.Plugins {
		in.Plugins = append(in.Plugins, path.Join(layout.ConfigDir, "plugins", p.Name()))
	}
	return in, nil
}

// findingsTrace is the id that the findings of a run share: the id of its
// trace, or the id of the run.
func findingsTrace(id runIdentity) string {
	if parts := strings.Split(id.trace, "-"); len(parts) == 4 {
		return parts[1]
	}
	return id.runID
}

// hidden are the files of the repository that the agent's program must not
// read. The program looks for them in the directory in which it starts and in
// those above it, up to the top of the repository.
func (p program) hidden() []string {
	h, hides := p.runtime.(runtime.Hider)
	if !hides || p.outside {
		return nil
	}
	names := h.Hidden(p.invocation)
	all := slices.Clone(names)
	top := p.invocation.RepoDir
	for dir := p.invocation.Start(); dir != top && strings.HasPrefix(dir, top+"/"); dir = path.Dir(dir) {
		for _, name := range names {
			all = append(all, path.Join(strings.TrimPrefix(dir, top+"/"), name))
		}
	}
	return all
}

// hookPlace are the files of the hooks.
type hookPlace struct{ settings, log, untold, told string }

// Where hooks are: in the sandbox, or in the session of a program on the host.
var (
	hooksInside  = hookPlace{hookSettingsFile, layout.HookLog, layout.Refusals, layout.HookState}
	hooksOutside = hookPlace{settings: agenthost.SessionDir + "/hooks.json", log: agenthost.SessionDir + "/hooks.log"}
)

// dropHooks is called where a program on the host has no session, and so no hooks.
func (p *program) dropHooks() {
	p.hooks.Active, p.hooks.Unavailable = []string{}, p.hooks.Active
	p.invocation.Hooks, p.besides = nil, nil
}

// sandboxHooks are the hooks that run in the sandbox.
func (p *program) sandboxHooks() []runtime.Hook {
	if p.outside {
		return nil
	}
	return p.invocation.Hooks
}

// hookSettingsFile is the file of the hooks' settings in the sandbox.
const hookSettingsFile = layout.RuntimeDir + "/hooks.json"

// addHooks selects the hooks that the agent program calls and makes their
// settings.
func (p *program) addHooks(from plan) error {
	var names []string
	if from.scans() {
		names = wantedHooks(from.harness.Security.SandboxHooks)
	}
	p.hooks.Active = []string{}
	place := hooksInside
	if p.outside { // the results of the sandbox's tools have what was refused
		place, names = hooksOutside, slices.DeleteFunc(names, func(name string) bool { return name == hook.Refusals })
	}
	if !p.runtime.Traits().Hooks {
		names = slices.DeleteFunc(names, func(name string) bool { return name == hook.Refusals }) // no harness asks for it
		p.hooks.Unavailable = names
		if p.runtime.Traits().Program != "" && len(names) > 0 {
			p.warning = fmt.Sprintf("the runtime %s calls no hooks; the policy is enforced all the same", p.runtime.Name())
		}
		return nil
	}
	if len(names) == 0 {
		return nil
	}
	s, err := hookSettings(from, names, p.trace, place)
	if err != nil {
		return err
	}
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	p.canary, p.hooks.Active = s.Canary, names
	file := runtime.File{Dest: place.settings, Data: append(data, '\n'), Mode: 0o644}
	if p.outside {
		p.besides = append(p.besides, file)
	} else {
		p.files = append(p.files, file)
	}
	for _, after := range []bool{false, true} {
		argv := []string{layout.Program, "hook", "--settings", place.settings}
		n := len(argv)
		for _, name := range names {
			if hook.After(name) == after {
				argv = append(argv, name)
			}
		}
		if len(argv) > n {
			p.invocation.Hooks = append(p.invocation.Hooks, runtime.Hook{After: after, Argv: argv})
		}
	}
	return nil
}
