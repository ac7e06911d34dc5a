// Package launch starts processes for the supervisor, and nobody else does.
//
// A session has one init ([NewInit]): the supervisor's own program executed
// again under the name "agentsh-init", where a C constructor takes over before
// the Go runtime exists. As process 1 of the session's namespaces it builds the
// session from a [Config], gives up every privilege, has the filter loaded and
// proves that it holds. [Init.Start] then has it fork one command after the
// other. A child sits in the init's namespaces from its fork on: what is left
// for it is its own descriptors, limits, directory and execve.
//
// The specification of a session and of a command travels in a memory file over
// a socket pair. Nothing of it is in arguments or environments.
package launch
