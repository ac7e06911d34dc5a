package main

import (
	"os"
	"runtime/debug"
)

// softLimit is the memory, in bytes, from which garbage is collected more often. A run
// of 100,000 files has 48 MiB in use at most; by default twice what is in use
// is taken. The pages of the program itself come on top: up to 30 MiB.
const softLimit = 58 << 20

// limitMemory makes this process use little memory. GOMEMLIMIT replaces the limit.
func limitMemory() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(softLimit)
	}
}
