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

// Unwrap is the cause.
func (e *End) Unwrap() error { return e.Err }
