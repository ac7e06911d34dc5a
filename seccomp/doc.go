// Package seccomp turns a plan of refused and notified system calls into a BPF
// program and speaks to the listener of a loaded one.
//
// A [Plan] is a list of values: which calls are refused, with which errno, why,
// and which calls wait for the supervisor. Everything else is allowed, except
// calls newer than this list knows, which get ENOSYS. [Plan.Compile] has
// libseccomp compile it; loading is left to the session init, which needs flags
// that libseccomp does not set (see seccomp(2), SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV).
// [Listener] receives and answers with raw ioctls, see seccomp_unotify(2).
package seccomp
