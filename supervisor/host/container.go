package host

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"agentsh/internal/layout"
	"agentsh/supervisor"
	"agentsh/supervisor/probe"
)

// containerMarks are files that Docker and podman make in every container.
var containerMarks = []string{"/.dockerenv", "/run/.containerenv"}

// inContainer reports whether this process runs in a container of Docker or podman.
func inContainer() bool {
	return slices.ContainsFunc(containerMarks, func(name string) bool {
		_, err := os.Lstat(name)
		return err == nil
	})
}

// machinePolicy is the operator's policy where the configuration names none.
var machinePolicy = layout.MachinePolicy

// packagedDefault and packagedPlain are the policies that the packages' configuration names.
const (
	packagedDefault = layout.Policies + "/default.yaml"
	packagedPlain   = layout.Policies + "/plain.yaml"
)

// InContainer returns the configuration of this machine. In a container its key container
// is applied: what may be missing, and the policy of commands that name none. told says what
// sessions run without; it is empty if nothing is missing, or outside a container. The error
// is that of a trial without a result.
func InContainer(c supervisor.OperatorConfig) (out supervisor.OperatorConfig, told string, err error) {
	if len(c.Container.Degraded) == 0 || !inContainer() {
		return c, "", nil
	}
	c.Degraded = slices.Concat(c.Degraded, c.Container.Degraded)
	missing, err := probe.Survey(c.Container.Degraded, probe.Session{Governed: true})
	if err != nil || len(missing) == 0 {
		return c, "", err
	}
	if missing.Has(probe.Namespaces) {
		c.Policy = containerPolicy(c.Policy, c.Container.Policy)
		c.Container.WholeTrees = true
	}
	c.Container.Here = true
	return c, containerLosses(missing, c.Policy), nil
}

// MakeState returns the state directory of the caller on this machine. In a container
// without namespaces it makes it, so that all later commands find the same one.
func MakeState(c supervisor.OperatorConfig) (layout.State, error) {
	state, err := State(c)
	if err == nil && c.Container.WholeTrees {
		err = state.MakeForContainer()
	}
	return state, err
}

// State returns the same directory, and makes nothing.
func State(c supervisor.OperatorConfig) (layout.State, error) {
	if c.Container.WholeTrees {
		return layout.ContainerState(os.Getenv, os.Geteuid())
	}
	return layout.FindState(os.Getenv, os.Geteuid())
}

// ContainerWorkspace returns the workspace of commands that start in the root directory of
// a container, and makes it. It is an error outside a container, and if the operator chose
// the root directory.
func ContainerWorkspace(chosen bool) (string, error) {
	if chosen || !inContainer() {
		return "", errors.New("the workspace would be /: start in a directory of the project, or set sandbox.workspace in the configuration")
	}
	dir, err := layout.ContainerWorkspace(os.Geteuid())
	if err != nil {
		return "", fmt.Errorf("the workspace would be /, and another one cannot be made: %w; write WORKDIR in the Dockerfile, or use "+
			"docker run --workdir DIR", err)
	}
	return dir, nil
}

// containerPolicy is the policy of commands that name none in a container without
// namespaces. The packages' own choice there replaces nothing but the packages' default: a
// policy that the operator chose stays, and is refused where it cannot be enforced.
func containerPolicy(configured, inContainer string) string {
	if _, err := os.Lstat(machinePolicy); err == nil && configured == "" {
		configured = machinePolicy // commands would use it
	}
	chosen := configured != "" && configured != packagedDefault
	if inContainer == "" || chosen && inContainer == packagedPlain {
		return configured
	}
	return inContainer
}

// containerLosses says in a few lines what a session in this container does without.
// policy is that of commands that name none.
func containerLosses(missing probe.Missing, policy string) string {
	text := "this container gives less than a session needs"
	if missing.Has(probe.Namespaces) {
		text += ": it allows no namespaces. Landlock enforces file rules for whole trees. There are no rules inside the " +
			"workspace, no change record and no network of the session's own"
		if policy != "" {
			text += ". The policy of the configuration is " + policy + " here"
		}
	} else {
		for _, name := range missing.Names() {
			text += "\n  without " + name + ": " + probe.Consequence(name)
		}
	}
	var absent *probe.Absent
	if errors.As(missing[probe.Namespaces], &absent) {
		text += fmt.Sprintf("\n  missing first: %s; to change: %s", absent.What, absent.Change)
	}
	return text + "\n  'agentsh detect' says what is missing; doc/platforms/docker.md has the flags of docker run for full strength"
}
