package seccomp

import "golang.org/x/sys/unix"

// always is an empty list of cases, with which every call is refused.
var always []Case

// kernelAnswered are refusals that ordinary programs cause at each start. They
// try the call and continue without it. The kernel answers these calls without
// the supervisor.
func kernelAnswered() []Refusal {
	return []Refusal{
		{[]string{"io_uring_setup", "io_uring_enter", "io_uring_register"}, always, unix.EPERM,
			"its operations open and connect without a system call a filter could see"},
		{[]string{"clone3"}, always, unix.ENOSYS, "its flags are in memory; libraries fall back to clone"},
		{[]string{"uselib", "_sysctl", "nfsservctl", "lookup_dcookie", "ustat", "sysfs", "vserver", "afs_syscall", "tuxcall", "security"},
			always, unix.ENOSYS, "retired calls"},
	}
}

// truncationRefusals refuse what truncates a file without opening it for writing. An
// ftruncate needs a file that is open for writing, and the kernel allows no other truncation.
func truncationRefusals() []Refusal {
	const reason = "this kernel's Landlock knows no right to truncate a file"
	opens := func(flags uint) []Case {
		const changed = (unix.O_ACCMODE | unix.O_TRUNC) << 32
		return []Case{{{flags, Masked, changed | unix.O_RDONLY | unix.O_TRUNC}}, {{flags, Masked, changed | unix.O_ACCMODE | unix.O_TRUNC}}}
	}
	return []Refusal{
		{[]string{"truncate"}, always, unix.EACCES, reason},
		{[]string{"open"}, opens(1), unix.EACCES, reason},
		{[]string{"openat"}, opens(2), unix.EACCES, reason},
		{[]string{"openat2"}, always, unix.ENOSYS, reason + ", and the flags are in memory; programs fall back to openat"},
	}
}

// clockRefusals are calls that read the clock of the machine as well as set it. A command
// has no capability to set it.
func clockRefusals() []Refusal {
	return []Refusal{
		{[]string{"clock_adjtime", "adjtimex"}, always, unix.EPERM, "clock of the machine"},
	}
}

// kernelRefusals refuse interfaces of the kernel that no ordinary program
// needs.
func kernelRefusals() []Refusal {
	return []Refusal{
		{[]string{"bpf"}, always, unix.EPERM, "loads programs into the kernel"},
		{[]string{"perf_event_open"}, always, unix.EPERM, "measures other processes and the kernel"},
		{[]string{"userfaultfd"}, always, unix.EPERM, "stops a reader of the caller's memory at will, the supervisor included"},
		{[]string{"add_key", "request_key", "keyctl"}, always, unix.EPERM, "keyrings outlive the sandbox and are shared by uid"},
		{[]string{"kexec_load", "kexec_file_load", "reboot"}, always, unix.EPERM, "replaces or stops the kernel"},
		{[]string{"init_module", "finit_module", "delete_module", "create_module", "query_module", "get_kernel_syms"},
			always, unix.EPERM, "kernel modules"},
		{[]string{"swapon", "swapoff"}, always, unix.EPERM, "swap of the machine"},
		{[]string{"acct"}, always, unix.EPERM, "process accounting of the machine"},
		{[]string{"quotactl", "quotactl_fd"}, always, unix.EPERM, "quotas of the machine"},
		{[]string{"settimeofday", "clock_settime", "stime"}, always, unix.EPERM, "clock of the machine"},
		{[]string{"sethostname", "setdomainname"}, always, unix.EPERM, "name of the sandbox is the operator's"},
		{[]string{"syslog"}, always, unix.EPERM, "the kernel log tells addresses and other tenants' names"},
		{[]string{"fanotify_init", "fanotify_mark"}, always, unix.EPERM, "watches and holds opens of other processes"},
		{[]string{"modify_ldt", "iopl", "ioperm", "vm86", "vm86old"}, always, unix.EPERM, "x86 segments and ports, rich in kernel faults"},
		{[]string{"memfd_secret"}, always, unix.EPERM, "memory that the supervisor cannot read when it verifies an exec"},
		// libseccomp calls it without a filter to detect support. The kernel
		// answers that with EFAULT.
		{[]string{"seccomp"}, []Case{{{0, Is32, unix.SECCOMP_SET_MODE_FILTER}, {1, HasBits, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER}, {2, Not, 0}}},
			unix.EPERM, "a filter with its own listener would answer CONTINUE in the supervisor's place"},
	}
}

// exceptions are refusals from which some calls are excepted.
func exceptions() []Exception {
	return []Exception{
		{
			Refusal: Refusal{
				[]string{"personality"},
				[]Case{{{0, Not, 0}}},
				unix.EPERM,
				"switches off address randomisation and makes memory executable",
			},
			// PER_LINUX32 and UNAME26, which change what uname tells, and the question.
			Values: []uint64{8, 0x20000, 0x20008, 0xffffffff},
		},
		{
			Refusal: Refusal{[]string{"process_vm_readv", "process_vm_writev"}, always, unix.EPERM, "memory of another process"},
			Self:    []uint{0},
		},
		{
			Refusal: Refusal{[]string{"kcmp"}, always, unix.EPERM, "compares kernel objects of other processes"},
			Self:    []uint{0, 1},
		},
	}
}

// mountRefusals protect the mounts and namespaces of the session.
func mountRefusals() []Refusal {
	return []Refusal{
		{
			[]string{
				"mount",
				"umount",
				"umount2",
				"fsopen",
				"fsconfig",
				"fsmount",
				"fspick",
				"open_tree",
				"open_tree_attr",
				"move_mount",
				"mount_setattr",
			},
			always,
			unix.EPERM,
			"the mount table is what hides files and makes them read-only",
		},
		{[]string{"chroot", "pivot_root"}, always, unix.EPERM, "another root makes every path mean something else"},
		{[]string{"setns"}, always, unix.EPERM, "enters another namespace"},
		{[]string{"unshare"}, bits(0, unix.CLONE_NEWTIME, unix.CLONE_NEWNS, unix.CLONE_NEWCGROUP, unix.CLONE_NEWUTS, unix.CLONE_NEWIPC,
			unix.CLONE_NEWUSER, unix.CLONE_NEWPID, unix.CLONE_NEWNET), unix.EPERM,
			"a user namespace gives every capability over new kernel objects"},
		{[]string{"clone"}, bits(0, unix.CLONE_NEWNS, unix.CLONE_NEWCGROUP, unix.CLONE_NEWUTS, unix.CLONE_NEWIPC,
			unix.CLONE_NEWUSER, unix.CLONE_NEWPID, unix.CLONE_NEWNET), unix.EPERM,
			"a user namespace gives every capability over new kernel objects"},
		{[]string{"open_by_handle_at"}, always, unix.EPERM, "opens by inode number, past every path"},
	}
}

// processRefusals protect processes from each other, and the session init.
func processRefusals() []Refusal {
	return []Refusal{
		{[]string{"ptrace"}, always, unix.EPERM, "rewrites a process after its exec was judged; a tracer blocks the supervisor's own"},
		{[]string{"process_madvise", "process_mrelease"}, always, unix.EPERM, "memory of another process, named by a descriptor"},
		{[]string{"pidfd_getfd"}, always, unix.EPERM, "descriptors of another process"},
		{[]string{"prlimit64"}, first(0, Condition{2, Not, 0}), unix.EPERM, "limits of the session's first processes"},
		{[]string{"setpriority"}, []Case{{{0, Is32, unix.PRIO_USER}}}, unix.EPERM, "the session init has the same user"},
		{[]string{"ioprio_set"}, []Case{{{0, Is32, ioprioWhoUser}}}, unix.EPERM, "the session init has the same user"},
	}
}

// Values of the first argument of ioprio_set(2).
const (
	ioprioWhoProcess = 1
	ioprioWhoGroup   = 2
	ioprioWhoUser    = 3
)

// initThreads are thread numbers that no command in a pid namespace has. The
// session init is 1, also as a group. Its forking thread is 2, or 3 after an
// opener. A command inherits the attributes of the thread that forks it.
var initThreads = []uint64{1, 2, 3}

// schedulerCalls are calls whose first argument is the number of a thread.
var schedulerCalls = []string{"sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"}

// groupRefusals are for commands without a pid namespace.
func groupRefusals() []Refusal {
	return []Refusal{
		{[]string{"setpriority"}, []Case{{{0, Is32, unix.PRIO_PGRP}, {1, Not, 0}}}, unix.EPERM, "another group, as that of the session init"},
		{[]string{"ioprio_set"}, []Case{{{0, Is32, ioprioWhoGroup}, {1, Not, 0}}}, unix.EPERM, "another group, as that of the session init"},
	}
}

// initRefusals protect the attributes of the session init in a pid namespace.
func initRefusals() []Refusal {
	return []Refusal{
		{schedulerCalls, equal(0, initThreads...), unix.EPERM, "a thread of the session init: what it has the next command inherits"},
		{[]string{"setpriority", "ioprio_set"}, equal(1, initThreads...), unix.EPERM, "a thread or the group of the session init"},
	}
}

// FirstProcesses is the number of the first pids that belong to the session itself: the
// init, its second thread, and the opener or a process that has ended. The kernel does not
// reuse a number below 300.
const FirstProcesses = 3

// first returns one case for each number of the session's own processes.
func first(arg uint, and ...Condition) []Case {
	var cases []Case
	for n := range uint64(FirstProcesses) {
		cases = append(cases, append(Case{{arg, Is32, n + 1}}, and...))
	}
	return cases
}

// Protocols that bypass connect and bind, or the checks of them.
const (
	protoSCTP = unix.IPPROTO_SCTP // connects by setsockopt
	protoSMC  = 256               // falls back to TCP beneath
)

// socketRefusals refuse all socket families except UNIX, INET, INET6 and route
// netlink.
func socketRefusals() []Refusal {
	return []Refusal{
		{[]string{"socket", "socketpair"}, families(), unix.EPERM, "families that reach the machine, other machines or old kernel code"},
		{[]string{"socket"}, netlinkProtocols(), unix.EPERM, "netlink other than route configures or watches the machine"},
		{[]string{"socket", "socketpair"}, equal(2, unix.IPPROTO_MPTCP), unix.EPERM,
			"MPTCP has further addresses that connect does not show; programs that try it first, as servers in Go do, go on with TCP"},
		{[]string{"socket", "socketpair"}, equal(2, protoSCTP, unix.IPPROTO_DCCP, protoSMC, unix.IPPROTO_UDPLITE),
			unix.EPERM, "protocols with further addresses that connect does not show"},
		{[]string{"sendto"}, []Case{{{3, HasBits, unix.MSG_FASTOPEN}}}, unix.EPERM, "connects without connect"},
		{[]string{"sendmsg"}, []Case{{{2, HasBits, unix.MSG_FASTOPEN}}}, unix.EPERM, "connects without connect"},
		{[]string{"sendmmsg"}, []Case{{{3, HasBits, unix.MSG_FASTOPEN}}}, unix.EPERM, "connects without connect"},
	}
}

// ioctl requests. See ioctl_tty(2).
const (
	tioclinux = 0x541c
	ioctlReq  = 1
)

// terminalRefusals refuse requests that insert input into a terminal.
func terminalRefusals() []Refusal {
	return []Refusal{
		{[]string{"ioctl"}, equal(ioctlReq, unix.TIOCSTI, tioclinux), unix.EPERM, "types into a terminal that others read"},
	}
}

// bits returns one case for each flag of a register.
func bits(arg uint, flags ...uint64) []Case {
	var cases []Case
	for _, f := range flags {
		cases = append(cases, Case{{arg, HasBits, f}})
	}
	return cases
}

// equal returns one case for each value of an int argument.
func equal(arg uint, values ...uint64) []Case {
	var cases []Case
	for _, v := range values {
		cases = append(cases, Case{{arg, Is32, v}})
	}
	return cases
}

// families returns the socket families that are refused.
func families() []Case {
	var cases []Case
	for f := range uint64(unix.AF_NETLINK) {
		if f != unix.AF_UNIX && f != unix.AF_INET && f != unix.AF_INET6 {
			cases = append(cases, Case{{0, Is32, f}})
		}
	}
	return append(cases, Case{{0, Above, unix.AF_NETLINK}})
}

// datagramSockets returns the cases of Internet sockets that are not stream
// sockets. See socket(2): the type shares its argument with two flags.
func datagramSockets() []Case {
	var cases []Case
	for _, family := range []uint64{unix.AF_INET, unix.AF_INET6} {
		for _, kind := range []uint64{unix.SOCK_DGRAM, unix.SOCK_RAW, unix.SOCK_RDM, unix.SOCK_SEQPACKET, unix.SOCK_DCCP, unix.SOCK_PACKET} {
			for _, flags := range []uint64{0, unix.SOCK_NONBLOCK, unix.SOCK_CLOEXEC, unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC} {
				cases = append(cases, Case{{0, Is32, family}, {1, Is32, kind | flags}})
			}
		}
	}
	return cases
}

// netlinkProtocols returns the netlink protocols that are refused: all except
// NETLINK_ROUTE, which is 0.
func netlinkProtocols() []Case {
	return []Case{{{0, Is32, unix.AF_NETLINK}, {2, Not, unix.NETLINK_ROUTE}}}
}
