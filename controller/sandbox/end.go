package sandbox

// EndKind says what ended a sandbox from outside.
type EndKind string

// Kinds of ends.
const (
	EndMemory      EndKind = "memory"      // the kernel killed it because its memory was full
	EndKilled      EndKind = "killed"      // somebody stopped or killed it
	EndRemoved     EndKind = "removed"     // it is no more, and nobody knows why
	EndDied        EndKind = "died"        // its first process ended by itself
	EndUnreachable EndKind = "unreachable" // what runs it did not answer until the lease ended
	EndEvicted     EndKind = "evicted"     // its node needed what it used, or was emptied
	EndPreempted   EndKind = "preempted"   // something of a higher priority needed its place
	EndNode        EndKind = "node"        // the machine that ran it is gone, or did not answer
	EndExpired     EndKind = "expired"     // it ran as long as it may
	EndImage       EndKind = "image"       // its image cannot be had
	EndNoRoom      EndKind = "no_room"     // no machine takes it
	EndQuota       EndKind = "quota"       // it would use more than is granted
	EndRefused     EndKind = "refused"     // the rights for it are missing, or rules of the cluster refuse it
)

// End is the error of a sandbox that something outside of it ended.
type End struct {
	Kind EndKind
	Text string // what happened
	Hint string // what to do; may be empty
	Err  error  // the cause; may be nil
}

// Error is what happened.
func (e *End) Error() string { return e.Text }

// Passes reports whether the sandbox may answer again.
func (e *End) Passes() bool { return e.Kind == EndUnreachable || e.Kind == EndNode }

// Unwrap is the cause.
func (e *End) Unwrap() error { return e.Err }

// MemoryEnd is the end of a sandbox whose memory was full.
func MemoryEnd() *End {
	return &End{
		Kind: EndMemory, Text: "was ended by the kernel because its memory was full",
		Hint: "raise container.memory_mb of the harness, or have the agent run less at a time",
	}
}
