package main

import (
	"os"
	"runtime/debug"
)

// softLimit is the memory, in bytes, from which garbage is collected more often. A run
// of 100,000 files has two thirds of it in use at most; by default twice what is in use
// is taken.
const softLimit = 72 << 20

// limitMemory makes this process use little memory. GOMEMLIMIT replaces the limit.
func limitMemory() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(softLimit)
	}
}
