package controller

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strconv"

	"agentsh/internal/layout"

	"agentsh/controller/bootstrap"
	"agentsh/controller/runtime"
)

// bootstrap brings everything the agent needs into the sandbox.
func (r *run) bootstrap(ctx context.Context) error {
	plan, err := bootstrap.New(r.planInput())
	if err != nil {
		return err
	}
	if len(plan.Skipped) > 0 {
		r.warn("left out of the sandbox: %s", few(plan.Skipped))
		if err := r.keepMissing(ctx, plan.Skipped); err != nil {
			return err
		}
		if plan, err = bootstrap.New(r.planInput()); err != nil { // git's index is another now
			return err
		}
	}
	r.result.Added = plan.Added
	for _, dir := range []string{layout.Home, layout.Output, layout.Feedback, layout.EnvDir} {
		plan.Entries = append(plan.Entries, bootstrap.Entry{Dest: dir, Kind: bootstrap.KindDir, Mode: 0o755})
	}
	sort.Slice(plan.Entries, func(i, j int) bool { return plan.Entries[i].Dest < plan.Entries[j].Dest })
	return bootstrap.Apply(ctx, r.box, plan)
}

// planInput is what the sandbox is planned from.
func (r *run) planInput() bootstrap.Input {
	in := bootstrap.Input{
		Agent: r.harness.AgentName(), Definition: r.harness.Path(r.harness.Agent), Note: canaryNote(r.canary),
		Repo: r.clone.Dir, Tree: r.tree, Hidden: r.hidden(), Objects: r.clone.Objects, RepoName: repoName(r.target.Dir),
		Input:    r.harness.Path(r.harness.AgentInput),
		AgentsMD: r.rules, Bridge: r.runtime.Traits().Bridge,
	}
	for _, s := range r.harness.Skills {
		in.Skills = append(in.Skills, r.harness.Path(s.Path))
	}
	for _, p := range r.harness.Plugins {
		in.Plugins = append(in.Plugins, r.harness.Path(p.Path))
	}
	for _, f := range r.own {
		in.Runtime = append(in.Runtime, bootstrap.File{Dest: f.Dest, Data: f.Data, Mode: f.Mode, Target: f.Target})
	}
	for _, f := range r.files {
		if f.Dest == layout.GeneratedEnv {
			in.Generated = f.Data
			continue
		}
		in.Files = append(in.Files, bootstrap.File{Dest: f.Dest, Source: f.Source, Data: f.Data, Mode: f.Mode})
	}
	return in
}

// hidden are the files of the repository that the agent's program must not find.
func (r *run) hidden() []string {
	if h, hides := r.runtime.(runtime.Hider); hides {
		return h.Hidden(r.invoke)
	}
	return nil
}

// keepMissing tells git that what cannot travel is meant to be missing: the
// agent would commit that it is gone. Each entry begins with a quoted name.
func (r *run) keepMissing(ctx context.Context, skipped []string) error {
	var names []string
	for _, s := range skipped {
		quoted, err := strconv.QuotedPrefix(s)
		if err == nil {
			quoted, err = strconv.Unquote(quoted)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("no name in %q", s), err)
		}
		names = append(names, quoted)
	}
	return r.clone.SkipWorktree(ctx, names)
}
