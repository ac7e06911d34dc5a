// Package seccomp compiles a plan of refused and notified system calls to a BPF program, and
// answers the notifications of a loaded one.
//
// A [Plan] is a list of values: the calls that are refused, with errno and reason, and the
// calls that wait for the supervisor. Every other call is allowed. Calls that are newer
// than this list get ENOSYS. [Plan.Compile] uses libseccomp (compile.go). The session init
// loads the program, since that needs flags that libseccomp does not set: see seccomp(2),
// SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV. [Listener] receives and answers with ioctls: see
// seccomp_unotify(2).
//
// [DefaultPlan] (plan.go) is the plan of a session, made of refusals.go and signals.go.
// self.go and server.go have the plans of the supervisor and of its helper processes.
package seccomp
