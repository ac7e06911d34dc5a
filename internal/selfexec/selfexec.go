// Package selfexec provides the environment for processes in which this program
// executes itself again.
package selfexec

// Environment returns the environment of such a process. It has no variable of
// the caller. With the race detector it removes the detector's wait at the end.
func Environment() []string { return append([]string{}, environment...) }
