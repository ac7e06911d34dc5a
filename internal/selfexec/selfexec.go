// Package selfexec has the environment for processes in which this program runs
// itself again.
package selfexec

// Environment is the environment of such a process: nothing of the caller's. A
// build with the race detector has it not wait a second at its end.
func Environment() []string { return append([]string{}, environment...) }
