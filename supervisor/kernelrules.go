package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"agentsh/policy"
)

// devNames is what a session's /dev holds. See launch.Dev.
var devNames = []string{"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "fd", "stdin", "stdout", "stderr"}

// holdKernelRules covers what rules deny below the kernel's own directories and
// refuses rules about them that no mount can hold: what is there is made anew for
// each reader. Rules that allow ask for no more than every session has, and those
// that speak of every directory say nothing about these.
func (p *viewPlanner) holdKernelRules() error {
	var problems []error
	for _, rule := range p.policy.Rules(policy.GroupFile) {
		if rule.Effect == policy.Allow {
			continue
		}
		for _, dir := range kernelDirs {
			for _, pattern := range rule.PathsBelow(dir) {
				if first, _, _ := strings.Cut(strings.TrimPrefix(pattern, "/"), "/"); first == "*" || first == "**" {
					continue
				}
				if why := p.holdKernelRule(rule, pattern); why != "" {
					problems = append(problems, fmt.Errorf("%s: rule %s: %s of %s cannot be held: %s", rule.Pos, rule.Name, rule.Effect, pattern, why))
				}
			}
		}
	}
	return errors.Join(problems...)
}

// holdKernelRule plans what one rule says about a place of the kernel, or says
// why it cannot be held.
func (p *viewPlanner) holdKernelRule(rule *policy.Rule, pattern string) string {
	name := strings.TrimSuffix(pattern, "/**")
	switch {
	case rule.Effect != policy.Deny:
		return "nothing decides on single operations there"
	case below(name, "/sys"):
		return "" // a session has no /sys
	case strings.ContainsAny(name, "*?[{\\") || slices.Contains(kernelDirs, name):
		return "name one file or directory"
	}
	for op := policy.OpRead; op < policy.OpAll; op <<= 1 {
		if d, _ := p.policy.Evaluate(&policy.FileRequest{Path: name, Op: op}); d.Effect != policy.Deny && op != policy.OpStat {
			return "it can only be covered as a whole: deny every operation"
		}
	}
	first, _, _ := strings.Cut(name[len("/proc/"):], "/")
	if below(name, "/dev") {
		first, _, _ = strings.Cut(name[len("/dev/"):], "/")
		if slices.Contains(devNames, first) {
			return "the devices of a session are not covered"
		}
		return "" // a session does not have it
	}
	if first == "self" || first == "thread-self" || strings.Trim(first, "0123456789") == "" {
		return "it differs for each process"
	}
	info, err := os.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "" // nothing makes files there
	case err != nil:
		return err.Error()
	case info.Mode()&fs.ModeSymlink != 0:
		return "it is a link to what differs for each process"
	case info.IsDir() && name == pattern:
		return "it is a directory: write " + name + "/**"
	}
	p.view.masked = append(p.view.masked, name)
	return ""
}
