package seccomp

import "golang.org/x/sys/unix"

// TagLimit is the resource limit whose hard value marks the processes of one
// command: every process inherits it, and no command may change it. Where it cannot be
// set, RLIMIT_RSS does the same, which no kernel enforces.
const TagLimit = unix.RLIMIT_RTTIME

// tagRefusals refuse to set the limit that holds the tag.
func tagRefusals(limit uint64) []Refusal {
	const reason = "the limit that marks a command's processes"
	return []Refusal{
		{[]string{"prlimit64"}, []Case{{{1, Is32, limit}, {2, Not, 0}}}, unix.EPERM, reason},
		{[]string{"setrlimit"}, []Case{{{0, Is32, limit}}}, unix.EPERM, reason},
	}
}
