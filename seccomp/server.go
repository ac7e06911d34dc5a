package seccomp

import (
	"slices"

	"golang.org/x/sys/unix"
)

// serverRefusals are calls that a server process never makes. It has its
// descriptors when it starts, and then only answers requests.
func serverRefusals() []Refusal {
	return []Refusal{
		{[]string{"execve", "execveat"}, always, unix.EPERM, "it runs one program, which it is"},
		{[]string{"fork", "vfork"}, always, unix.EPERM, "it never forks"},
		{[]string{"clone"}, []Case{{{0, NoBits, unix.CLONE_THREAD}}}, unix.EPERM, "it makes threads only"},
		{[]string{"socket", "socketpair", "connect", "bind", "listen", "accept", "accept4"}, always, unix.EPERM,
			"its control socket was made for it"},
		{[]string{"kill", "tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_open", "pidfd_send_signal"}, always, unix.EPERM,
			"it signals its own threads only, by tgkill"},
		{[]string{"unshare"}, always, unix.EPERM, "its namespaces are the supervisor's choice"},
		{
			[]string{"setuid", "setgid", "setreuid", "setregid", "setresuid", "setresgid", "setfsuid", "setfsgid", "setgroups", "capset"},
			always,
			unix.EPERM,
			"its identity does not change",
		},
		{[]string{"mknod"}, always, unix.EPERM, "mknodat is judged below"},
		{[]string{"mknodat"}, []Case{{{2, HasBits, unix.S_IFCHR}}}, unix.EPERM, "it makes no devices: the bit is that of both kinds"},
		{[]string{"memfd_create", "shmget", "shmat", "shmctl", "semget", "msgget", "mq_open"}, always, unix.EPERM, "it shares no memory"},
		{[]string{"fanotify_init"}, []Case{{{0, Not, watchGroup}}}, unix.EPERM, "it learns the names of changes, and opens and holds nothing"},
		{
			[]string{"fanotify_mark"},
			[]Case{{{1, HasBits, unix.FAN_MARK_MOUNT}}, {{1, HasBits, unix.FAN_MARK_FILESYSTEM}}},
			unix.EPERM,
			"it watches single directories, not the machine",
		},
		{[]string{"mbind", "set_mempolicy", "migrate_pages", "move_pages", "vhangup"},
			always, unix.EPERM, "nothing needs it"},
	}
}

// watchGroup are the flags of the only fanotify group that a server makes: its events have
// directories and names, and no descriptors.
const watchGroup = unix.FAN_CLASS_NOTIF | unix.FAN_REPORT_DFID_NAME | unix.FAN_CLOEXEC | unix.FAN_NONBLOCK

// ownRules are the calls about which serverRefusals replace the rules for commands.
var ownRules = []string{"fanotify_init", "fanotify_mark"}

// ServerPlan is the plan of a server process of a session, such as the file server. It has
// no notifications. It refuses the calls that are refused to commands, and more.
func ServerPlan() Plan {
	var p Plan
	lists := [][]Refusal{
		kernelAnswered(), clockRefusals(), kernelRefusals(), mountRefusals(), processRefusals(), terminalRefusals(), Signals{}.refused(),
	}
	for _, e := range slices.Concat(exceptions(), Signals{}.excepted()) {
		lists = append(lists, []Refusal{e.Refusal})
	}
	for _, list := range lists {
		for _, r := range list {
			if !overlaps(r) {
				p.Refused = append(p.Refused, r)
			}
		}
	}
	p.Refused = append(p.Refused, serverRefusals()...)
	return p
}

// overlaps reports whether serverRefusals refuse a call of r completely, or have rules of
// their own for it.
func overlaps(r Refusal) bool {
	for _, own := range serverRefusals() {
		for _, a := range own.Syscalls {
			for _, b := range r.Syscalls {
				if a == b && (len(own.When) == 0 || slices.Contains(ownRules, b)) {
					return true
				}
			}
		}
	}
	return false
}
