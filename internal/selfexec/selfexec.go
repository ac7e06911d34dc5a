// Package selfexec says what a process gets that this program starts of itself.
package selfexec

// Environment is the environment of such a process: nothing of the caller's. A
// build with the race detector has it not wait a second at its end.
func Environment() []string { return append([]string{}, environment...) }
