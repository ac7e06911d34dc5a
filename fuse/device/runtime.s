// Functions of the Go runtime that watch.go declares have no body here: a file of assembly
// lets the compiler accept that.
