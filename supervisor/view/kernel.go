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

// devNames are the names in a session's /dev. See [launch.Dev].
var devNames = []string{"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "fd", "stdin", "stdout", "stderr"}

// addKernelRules covers the paths below the kernel's directories that rules
// deny. It rejects rules that no mount can enforce, because the kernel
// generates these files for each reader. An allow rule may only name paths that
// a session has. A rule whose pattern matches every directory is not applied
// here.
func (p *planner) addKernelRules() error {
	var problems []error
	for _, rule := range p.policy.Rules(policy.GroupFile) {
		for _, dir := range kernelDirs {
			for _, pattern := range rule.PathsBelow(dir) {
				if first, _, _ := strings.Cut(strings.TrimPrefix(pattern, "/"), "/"); first == "*" || first == "**" {
					continue
				}
				add := p.addKernelRule
				if rule.Effect == policy.Allow {
					add = allowsKernelFiles
				}
				if why := add(rule, pattern); why != "" {
					problems = append(problems, fmt.Errorf("%s: rule %s: %s of %s cannot be enforced: %s", rule.Pos, rule.Name, rule.Effect, pattern, why))
				}
			}
		}
	}
	return errors.Join(problems...)
}

// addKernelRule plans one rule for kernel files. It returns why the rule cannot
// be enforced, or an empty string.
func (p *planner) addKernelRule(rule *policy.Rule, pattern string) string {
	name := strings.TrimSuffix(pattern, "/**")
	if strings.HasPrefix(pattern, notify.Emulated+"/") && onlyReads(rule) {
		why := p.emulateReads(pattern)
		if why == "" && p.out.Emulates == "" {
			p.out.Emulates = fmt.Sprintf("%s: rule %s", rule.Pos, rule.Name)
		}
		return why
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

// mask covers a file, or everything in a directory. It returns why it cannot.
// It returns an empty string on success, or if no such file exists.
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

// sysShown are the directories of /sys that a session may show: the processors and
// the memory of the machine. Programs derive their number of threads from them.
// The rest of /sys names devices, firmware and other tenants.
var sysShown = []string{
	"/sys/devices/system/cpu",
	"/sys/devices/system/node",
	"/sys/kernel/mm/hugepages",
	"/sys/kernel/mm/transparent_hugepage",
}

// allowsKernelFiles returns why a session does not have the paths that a rule
// allows. It returns an empty string if the session has them or some of them.
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

// addSys binds the directories of /sys that the policy allows to read.
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

// onlyReads reports whether a rule below [notify.Emulated] concerns opening files
// for reading alone. That directory is mounted read-only: changes need no rule.
func onlyReads(rule *policy.Rule) bool {
	switch rule.Effect {
	case policy.Deny, policy.Audit, policy.Approve:
		return rule.Concerns(policy.OpRead) && !rule.Concerns(readOps&^policy.OpRead)
	}
	return false
}

// emulateReads makes the notification loop decide every open below
// [notify.Emulated]. It returns why that is impossible, or an empty string.
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

// readable returns the paths below which commands open files directly. These
// are the read rights that Landlock grants outside [notify.Emulated].
func readable(l *launch.Landlock) []string {
	out := []string{}
	for _, r := range l.Rules {
		if r.Access&unix.LANDLOCK_ACCESS_FS_READ_FILE != 0 && r.Path != notify.Emulated {
			out = append(out, r.Path)
		}
	}
	return out
}
