package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/foreground"
	"agentsh/internal/layout"
	"agentsh/internal/project"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/supervisor/probe"
)

// forAgent prepares for an agent program: it gets this process's terminal, if that is one.
func (o *execOptions) forAgent(argv []string, std stdio) {
	if o.session != "" {
		return
	}
	o.agent = project.FindAgent(argv)
	o.tty = o.tty || o.agent != nil && !o.json && foreground.IsTerminal(std.in) && foreground.IsTerminal(std.out)
}

// equip gives an agent program what it keeps between sessions, and placeholders of the keys
// that are set here. The command line's own variables win.
func (o *execOptions) equip(p *plan, boot *wire.Bootstrap) error {
	a := o.agent
	if a == nil {
		return nil
	}
	var notes []string
	if why := o.losesHome(p); why != "" {
		notes = append(notes, a.Name+" keeps nothing between its sessions: "+why)
	} else {
		dir := p.state.Agent(a.Name)
		if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
			notes = append(notes, "HOME of "+a.Name+" in its sessions is "+dir)
		}
		if err := errors.Join(p.state.Make(), os.MkdirAll(dir, 0o700)); err != nil {
			return failure.New(failure.Ours, fmt.Errorf("home of %s: %w", a.Name, err), "")
		}
		boot.Governed = append(boot.Governed, wire.Governed{Backing: dir, Path: layout.CommandHome})
	}
	for _, k := range a.Keys {
		value := os.Getenv(k.Variable)
		if len(value) < wire.ShortestCredential || o.network || o.sets(k.Variable) {
			continue
		}
		c := wire.Credential{
			Name: k.Variable, Placeholder: "agentsh-placeholder-" + rand.Text(), Value: value, Endpoints: []string{k.Host}, Header: k.Header,
		}
		boot.Credentials = append(boot.Credentials, c)
		if boot.EnvInject == nil {
			boot.EnvInject = map[string]string{}
		}
		boot.EnvInject[k.Variable] = c.Placeholder // no filter needs to let it pass: it is no secret
		notes = append(notes, k.Variable+" is a placeholder in the session; the key goes to "+k.Host+" alone")
	}
	o.env = append(slices.Clone(a.Env), o.env...)
	for _, note := range notes {
		fmt.Fprintln(os.Stderr, "agentsh: note: "+note)
	}
	return nil
}

// sets reports whether the command line sets a variable.
func (o *execOptions) sets(name string) bool {
	return slices.ContainsFunc(o.env, func(e string) bool { n, _, _ := strings.Cut(e, "="); return n == name })
}

// losesHome says why a session cannot have a home that stays; empty: it can. It takes a
// root of the session's own, and a policy that lets commands write there.
func (o *execOptions) losesHome(p *plan) string {
	names := slices.Clone(o.degraded)
	for _, s := range p.operator.Degraded {
		names = append(names, s.Name)
	}
	if p.operator.Container.Here || slices.Contains(names, probe.Namespaces) || slices.Contains(names, probe.AnyMechanism) {
		return "without namespaces its home is no directory of its own"
	}
	d, _ := p.policy.Evaluate(&policy.FileRequest{Path: filepath.Join(layout.CommandHome, "x"), Op: policy.OpCreate})
	if !d.Permits() {
		return "the policy lets no command write in " + layout.CommandHome
	}
	return ""
}
