package supervisor

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

// holdKernelRules covers what rules deny below the kernel's own directories and
// refuses rules about them that no mount can hold: what is there is made anew for
// each reader. A rule that allows may ask for no more than a session has. Those that
// speak of every directory say nothing about these.
func (p *viewPlanner) holdKernelRules() error {
	var problems []error
	for _, rule := range p.policy.Rules(policy.GroupFile) {
		for _, dir := range kernelDirs {
			for _, pattern := range rule.PathsBelow(dir) {
				if first, _, _ := strings.Cut(strings.TrimPrefix(pattern, "/"), "/"); first == "*" || first == "**" {
					continue
				}
				hold := p.holdKernelRule
				if rule.Effect == policy.Allow {
					hold = givesKernelFiles
				}
				if why := hold(rule, pattern); why != "" {
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
	if strings.HasPrefix(pattern, notify.Emulated+"/") && onlyReads(rule) {
		return p.holdReads(pattern)
	}
	switch {
	case rule.Effect != policy.Deny && below(name, notify.Emulated):
		return "name read as its operation, which is the one that is decided there file by file"
	case rule.Effect != policy.Deny:
		return "nothing decides on single operations there"
	case below(name, "/sys") && !below(name, sysShown...):
		return "" // a session does not have it
	case strings.ContainsAny(name, "*?[{\\") || slices.Contains(kernelDirs, name):
		return "name one file or directory"
	}
	for op := policy.OpRead; op < policy.OpAll; op <<= 1 {
		if d, _ := p.policy.Evaluate(&policy.FileRequest{Path: name, Op: op}); d.Effect != policy.Deny && op != policy.OpStat {
			return "it can only be covered as a whole: deny every operation, or read alone"
		}
	}
	if below(name, "/sys") {
		return p.mask(name, pattern)
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
	return p.mask(name, pattern)
}

// mask covers a file, or all that is in a directory.
func (p *viewPlanner) mask(name, pattern string) string {
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

// sysShown are what a session has of /sys, where the policy allows to read it: the
// processors and the memory of the machine, from which programs choose how many
// threads they start. The rest names devices, firmware and other tenants.
var sysShown = []string{
	"/sys/devices/system/cpu",
	"/sys/devices/system/node",
	"/sys/kernel/mm/hugepages",
	"/sys/kernel/mm/transparent_hugepage",
}

// givesKernelFiles says why a session does not have what a rule allows; empty: it
// does, or has the part that is safe.
func givesKernelFiles(rule *policy.Rule, pattern string) string {
	fixed := pattern
	if at := strings.IndexAny(pattern, "*?[{\\"); at >= 0 {
		fixed = pattern[:at]
	}
	fixed = strings.TrimSuffix(fixed, "/")
	switch {
	case below(fixed, "/dev") || !below(fixed, "/proc", "/sys"):
		return ""
	case rule.Concerns(writeOps):
		return "it is read-only in every session: name read, list and stat as its operations"
	case below(fixed, "/sys") && !slices.ContainsFunc(sysShown, func(s string) bool { return below(fixed, s) || below(s, fixed) }):
		return "of /sys a session has " + strings.Join(sysShown, ", ") + " and nothing else"
	}
	return ""
}

// addSys shows what a session has of /sys.
func (p *viewPlanner) addSys() {
	for _, dir := range sysShown {
		if _, err := os.Stat(dir); err != nil {
			continue // this kernel has none
		}
		read := p.policy.Tree(dir, readOps&^policy.OpExecute)
		if read.Effect == policy.Allow {
			p.view.binds = append(p.view.binds, bind{path: dir, noExec: true})
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

// holdReads has each open of a file below notify.Emulated decided, or says why
// it cannot be.
func (p *viewPlanner) holdReads(pattern string) string {
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
	p.view.opens = true
	return ""
}

// noOpens says why files of the kernel cannot be decided on one by one in this
// session; empty: they can.
func (s *Session) noOpens() string {
	switch {
	case s.plain():
		return "in a plain session " + notify.Emulated + " is the machine's"
	case s.lost.has(lossLandlock), s.lost.has(lossScopes), launch.LandlockABI() < 6:
		return "it takes Landlock with scopes (Linux 6.12), which keeps commands from opening files there themselves"
	}
	return ""
}

// readable are the places beneath which commands open files themselves: all
// that Landlock grants them, but for those that are opened one by one.
func readable(l *launch.Landlock) []string {
	out := []string{}
	for _, r := range l.Rules {
		if r.Access&unix.LANDLOCK_ACCESS_FS_READ_FILE != 0 && r.Path != notify.Emulated {
			out = append(out, r.Path)
		}
	}
	return out
}

// openOne is how the notification loop opens a file of the kernel; nil: it is
// never asked to.
func (s *Session) openOne() (func(string, int) (*os.File, error), error) {
	if !s.opens {
		return nil, nil
	}
	var err error
	if s.opener, err = s.init.Opener(); err != nil {
		return nil, err
	}
	return s.opener.Open, nil
}
