// Package batch runs many agents: a list of harnesses, repositories and variables, or a matrix.
//
// [Read] reads a file, and [Spec] is what it asks for. [Start] makes the directory of a new batch
// in the state directory, [Resume] opens that of one whose process has ended. [Batch.Run] starts
// each run by controller.Run, in this process, as far as the caps, the deadline and the budget
// allow.
//
//	queue.go    which run is next: harnesses take turns, then their repositories
//	attempt.go  one attempt of a run, and what follows from its end
//	journal.go  what was started and how it ended, written before and after each run
//	resume.go   what became of runs that were going on when the process was killed
//	control.go  how another process stops runs
//	view.go     the state of a batch, from its files
package batch
