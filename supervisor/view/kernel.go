package view

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"agentsh/policy"
	"agentsh/supervisor/launch"
	"agentsh/supervisor/notify"
)

// devNames is what a session's /dev holds. See launch.Dev.
var devNames = []string{"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "fd", "stdin", "stdout", "stderr"}

// addKernelRules covers what rules deny below the kernel's own directories and
// refuses rules about them that no mount can hold: what is there is made anew for
// each reader. A rule that allows may ask for no more than a session has. Those that
// speak of every directory say nothing about these.
func (p *planner) addKernelRules() error {
	var problems []error
	for _, rule := range p.policy.Rules(policy.GroupFile) {
		for _, dir := range kernelDirs {
			for _, pattern := range rule.PathsBelow(dir) {
				if first, _, _ := strings.Cut(strings.TrimPrefix(pattern, "/"), "/"); first == "*" || first == "**" {
					continue
				}
				hold := p.addKernelRule
				if rule.Effect == policy.Allow {
					hold = allowsKernelFiles
				}
				if why := hold(rule, pattern); why != "" {
					problems = append(problems, fmt.Errorf("%s: rule %s: %s of %s cannot be held: %s", rule.Pos, rule.Name, rule.Effect, pattern, why))
				}
			}
		}
	}
	return errors.Join(problems...)
}

// addKernelRule plans what one rule says about a place of the kernel, or says
// why it cannot be held.
func (p *planner) addKernelRule(rule *policy.Rule, pattern string) string {
	name := strings.TrimSuffix(pattern, "/**")
	if strings.HasPrefix(pattern, notify.Emulated+"/") && onlyReads(rule) {
		return p.emulateReads(pattern)
	}
	switch {
	case rule.Effect != policy.Deny && Below(name, notify.Emulated):
		return "name read as its operation, which is the one that is decided there file by file"
	case rule.Effect != policy.Deny:
		return "nothing decides on single operations there"
	case Below(name, "/sys") && !Below(name, sysShown...):
		return "" // a session does not have it
	case strings.ContainsAny(name, "*?[{\\") || slices.Contains(kernelDirs, name):
		return "name one file or directory"
	}
	for op := policy.OpRead; op < policy.OpAll; op <<= 1 {
		if d, _ := p.policy.Evaluate(&policy.FileRequest{Path: name, Op: op}); d.Effect != policy.Deny && op != policy.OpStat {
			return "it can only be covered as a whole: deny every operation, or read alone"
		}
	}
	if Below(name, "/sys") {
		return p.mask(name, pattern)
	}
	first, _, _ := strings.Cut(name[len("/proc/"):], "/")
	if Below(name, "/dev") {
		first, _, _ = strings.Cut(name[len("/dev/"):], "/")
		if slices.Contains(devNames, first) {
			return "the devices of a session are not covered"
		}
		return "" // a session does not have it
	}
	if first == "self" || first == "thread-self" || strings.Trim(first, "0123456789") == "" {
		return "it differs for each process"
	}
	return p.mask(name, pattern)
}

// mask covers a file, or all that is in a directory.
func (p *planner) mask(name, pattern string) string {
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
	p.out.masked = append(p.out.masked, name)
	return ""
}

// sysShown are what a session has of /sys, where the policy allows to read it: the
// processors and the memory of the machine, from which programs choose how many
// threads they start. The rest names devices, firmware and other tenants.
var sysShown = []string{
	"/sys/devices/system/cpu",
	"/sys/devices/system/node",
	"/sys/kernel/mm/hugepages",
	"/sys/kernel/mm/transparent_hugepage",
}

// allowsKernelFiles says why a session does not have what a rule allows; empty: it
// does, or has the part that is safe.
func allowsKernelFiles(rule *policy.Rule, pattern string) string {
	fixed := pattern
	if at := strings.IndexAny(pattern, "*?[{\\"); at >= 0 {
		fixed = pattern[:at]
	}
	fixed = strings.TrimSuffix(fixed, "/")
	switch {
	case Below(fixed, "/dev") || !Below(fixed, "/proc", "/sys"):
		return ""
	case rule.Concerns(writeOps):
		return "it is read-only in every session: name read, list and stat as its operations"
	case Below(fixed, "/sys") && !slices.ContainsFunc(sysShown, func(s string) bool { return Below(fixed, s) || Below(s, fixed) }):
		return "of /sys a session has " + strings.Join(sysShown, ", ") + " and nothing else"
	}
	return ""
}

// addSys shows what a session has of /sys.
func (p *planner) addSys() {
	for _, dir := range sysShown {
		if _, err := os.Stat(dir); err != nil {
			continue // this kernel has none
		}
		read := p.policy.Tree(dir, readOps&^policy.OpExecute)
		if read.Effect == policy.Allow {
			p.out.binds = append(p.out.binds, bind{path: dir, noExec: true})
		}
	}
}

// onlyReads reports whether a rule speaks, of what is possible at all below
// notify.Emulated, which is mounted read-only, of opening files for reading.
func onlyReads(rule *policy.Rule) bool {
	switch rule.Effect {
	case policy.Deny, policy.Audit, policy.Approve:
		return rule.Concerns(policy.OpRead) && !rule.Concerns(readOps&^policy.OpRead)
	}
	return false
}

// emulateReads has each open of a file below notify.Emulated decided, or says why
// it cannot be.
func (p *planner) emulateReads(pattern string) string {
	first, _, _ := strings.Cut(strings.TrimPrefix(pattern, notify.Emulated+"/"), "/")
	switch {
	case p.noOpens != "":
		return p.noOpens
	case first == "self" || first == "thread-self":
		return "it differs for each process: write " + strings.Replace(pattern, first, "*", 1)
	case strings.ContainsAny(first, "*?[{\\"):
	default:
		if info, err := os.Lstat(notify.Emulated + "/" + first); err == nil && info.Mode()&fs.ModeSymlink != 0 {
			return "it is a link to what differs for each process: write " + strings.Replace(pattern, first, "*/"+first, 1)
		}
	}
	p.out.Emulated = true
	return ""
}

// readable are the paths below which commands open files themselves: all that
// Landlock grants them without [notify.Emulated].
func readable(l *launch.Landlock) []string {
	out := []string{}
	for _, r := range l.Rules {
		if r.Access&unix.LANDLOCK_ACCESS_FS_READ_FILE != 0 && r.Path != notify.Emulated {
			out = append(out, r.Path)
		}
	}
	return out
}
