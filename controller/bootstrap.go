package controller

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strconv"

	"agentsh/controller/bootstrap"
	"agentsh/internal/layout"
)

// planSandbox plans the files of the sandbox.
func planSandbox(ctx context.Context, p plan, prog program, c checkout, to progress) (bootstrap.Plan, error) {
	out, err := bootstrap.New(sandboxInput(p, prog, c))
	if err != nil {
		return out, err
	}
	if len(out.Skipped) > 0 {
		to.warn("left out of the sandbox: %s", few(out.Skipped))
		names, err := skippedNames(out.Skipped)
		if err == nil {
			err = c.own()
		}
		if err == nil {
			c.source = c.clone
			err = c.clone.SkipWorktree(ctx, names) // otherwise the agent would commit their deletion
		}
		if err != nil {
			return out, err
		}
		if out, err = bootstrap.New(sandboxInput(p, prog, c)); err != nil { // again, because git's index has changed
			return out, err
		}
	}
	made := []string{layout.Home, layout.Output, layout.Feedback, layout.EnvDir}
	if c.clone.Dir == "" {
		made = append(made, c.dir)
	}
	for _, dir := range made {
		out.Entries = append(out.Entries, bootstrap.Entry{Dest: dir, Kind: bootstrap.KindDir, Mode: 0o755})
	}
	sort.Slice(out.Entries, func(i, j int) bool { return out.Entries[i].Dest < out.Entries[j].Dest })
	return out, nil
}

// sandboxInput makes the input of the plan.
func sandboxInput(p plan, prog program, c checkout) bootstrap.Input {
	h := p.harness
	in := bootstrap.Input{
		Agent: h.AgentName(), Definition: h.Path(h.Agent), Note: definitionNote(prog),
		Repo: c.source.Dir, RepoName: c.name(), Hidden: prog.hidden(),
		Commit:   bootstrap.Commit{Tree: c.tree, Objects: c.objects},
		Input:    h.Path(h.AgentInput),
		AgentsMD: p.rules, Bridge: prog.runtime.Traits().Bridge && !prog.outside,
	}
	for _, s := range h.Skills {
		overrides := map[string]string{}
		for name, source := range s.Overrides {
			overrides[name] = h.Path(source)
		}
		in.Skills = append(in.Skills, bootstrap.Skill{Dir: h.Path(s.Path), Overrides: overrides})
	}
	if schema := p.schema(); schema != "" {
		in.Internal = append(in.Internal, bootstrap.File{Dest: layout.OutputSchema, Source: schema, Mode: 0o644})
	}
	for _, p := range h.Plugins {
		in.Plugins = append(in.Plugins, h.Path(p.Path))
	}
	for _, f := range prog.files {
		in.Internal = append(in.Internal, bootstrap.File{Dest: f.Dest, Data: f.Data, Mode: f.Mode, Target: f.Target})
	}
	for _, f := range p.files {
		if f.Script != nil {
			continue // its variables are written by bootstrap.ReadScripts
		}
		file := bootstrap.File{Dest: f.Dest, Source: f.Source, Data: f.Data, Mode: f.Mode}
		if f.Generated {
			in.Internal = append(in.Internal, file)
			continue
		}
		in.Files = append(in.Files, file)
	}
	return in
}

// definitionNote is appended to the agent's definition in the sandbox. An agent on the host has its own.
func definitionNote(prog program) []byte {
	if prog.outside {
		return nil
	}
	return canaryNote(prog.canary)
}

// skippedNames parses the skipped files of a plan: each entry begins with the
// quoted name.
func skippedNames(skipped []string) ([]string, error) {
	var names []string
	for _, s := range skipped {
		quoted, err := strconv.QuotedPrefix(s)
		if err == nil {
			quoted, err = strconv.Unquote(quoted)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("no name in %q", s), err)
		}
		names = append(names, quoted)
	}
	return names, nil
}
