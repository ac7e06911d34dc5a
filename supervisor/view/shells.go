package view

import (
	"fmt"
	"slices"

	"agentsh/internal/shim"
	"agentsh/supervisor/launch"
)

// realShells mounts the shells of the machine over the shims. A command that
// starts /bin/sh then gets a shell, and the policy decides on it as on any
// program.
func realShells(v *Plan) ([]launch.Mount, error) {
	shells, err := shim.Shells("/")
	if err != nil {
		return nil, err
	}
	var out []launch.Mount
	for _, s := range shells {
		target := "/" + s.Path
		for _, g := range v.Governed {
			if Below(target, g.Path) {
				return nil, fmt.Errorf("the file rules differ inside %s, where the shim stands in for %s: allow reading it as a whole", g.Path, target)
			}
		}
		i := slices.IndexFunc(v.binds, func(b bind) bool { return Below(target, b.path) })
		if i < 0 {
			continue // no rule shows it
		}
		out = append(out, launch.Mount{Kind: launch.Bind, Source: "/" + s.Real, Target: target, ReadOnly: true, NoExec: v.binds[i].noExec})
	}
	return out, nil
}
