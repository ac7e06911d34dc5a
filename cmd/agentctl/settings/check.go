package settings

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"agentsh/cmd/agentctl/output"
	"agentsh/controller"
	"agentsh/controller/harness"
	rules "agentsh/controller/openshell"
	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/blaxel"
	"agentsh/controller/sandbox/openshell"
	"agentsh/internal/layout"
	"agentsh/internal/statedir"
)

// Check returns what a run of a harness would refuse on this machine. Without --repo,
// that is left to the run.
func (f *Run) Check(ctx context.Context, stderr io.Writer, name string) (_ harness.Problems, err error) {
	if f.Repo == "" {
		return OnlyRun(name, "what this machine and the repository lack: give --repo DIR"), nil
	}
	o, err := f.Options(name)
	if err != nil {
		return nil, err
	}
	dir, err := checkDir(o.State)
	if err != nil {
		return nil, &output.Failure{Code: controller.ExitSandbox, Err: err}
	}
	defer func() { err = errors.Join(err, statedir.RemoveTree(dir)) }()
	if o.State, err = statedir.Open(layout.State(dir)); err != nil {
		return nil, &output.Failure{Code: controller.ExitSandbox, Err: err}
	}
	program, err := Absolute(f.Agentsh)
	if err != nil {
		return nil, err
	}
	if o.Backend, err = f.Place.open(o.State, program, o.Model.Config); err != nil {
		return nil, err
	}
	ctx, force, stop := Interruptible(ctx, AbandonRun(stderr))
	defer stop()
	o.Force = force
	later, ps := controller.Check(ctx, o)
	if i := (controller.Interrupted{}); errors.As(context.Cause(ctx), &i) {
		return nil, &output.Failure{Code: 128 + int(i.Signal), Err: i}
	}
	return append(ps, OnlyRun(name, later...)...), nil
}

// SpecCheck returns what the backend of a harness says of a sandbox on any machine; nil: nothing. With --repo,
// [Run.Check] asks the backend itself.
func (f *Run) SpecCheck(h *harness.Harness) func(sandbox.Spec) error {
	name := f.Place.Backend
	if f.Place.choosable() {
		name = h.Backend.V
	}
	switch {
	case f.Repo != "":
	case name == blaxel.Name:
		return blaxel.CheckSpec
	case name == openshell.Name:
		c, err := readConfig()
		if err != nil {
			return func(sandbox.Spec) error { return err }
		}
		if !c.hasGateway { // of another machine, which may do without everything
			c.without = rules.Words()
		}
		return func(s sandbox.Spec) error { return openshell.CheckSpec(s, c.without) }
	}
	return nil
}

// OnlyRun returns notes about what only a run of a harness can find out.
func OnlyRun(name string, what ...string) harness.Problems {
	var ps harness.Problems
	for _, text := range what {
		ps = append(ps, harness.Problem{
			At: harness.Origin{File: name, Line: 1, Column: 1}, Severity: harness.Note, Rule: harness.RuleOnlyRun, Message: text,
		})
	}
	return ps
}

// CheckPrefix begins the names of the state directories of checks, which are in that
// of the runs.
const CheckPrefix = "lint-"

// checkDir makes a state directory for a check, and removes those that killed checks
// left a day ago.
func checkDir(state statedir.Dir) (string, error) {
	root := filepath.Dir(state.Sandboxes())
	entries, err := os.ReadDir(root)
	if err != nil {
		return "", fmt.Errorf("state directory: %w", err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !strings.HasPrefix(e.Name(), CheckPrefix) || time.Since(info.ModTime()) < 24*time.Hour {
			continue
		}
		if err := statedir.RemoveTree(filepath.Join(root, e.Name())); err != nil {
			return "", fmt.Errorf("remove what an earlier lint left: %w", err)
		}
	}
	return os.MkdirTemp(root, CheckPrefix)
}
