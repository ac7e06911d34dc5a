package policy

import "time"

// Limits are resource limits; a zero field is not set.
type Limits struct {
	MemoryBytes    int64
	CPUPercent     int
	Pids           int
	OpenFiles      int
	DiskWriteBytes int64
	CommandTimeout time.Duration
	SessionTimeout time.Duration
	IdleTimeout    time.Duration
	DiskReadRate   int64 // bytes per second
	DiskWriteRate  int64 // bytes per second
	NetworkMbps    int
	SwapLimited    bool // SwapBytes is set, and may be 0 for no swap at all
	SwapBytes      int64
}

// TreeVerdict says how a policy treats a whole directory tree.
type TreeVerdict struct {
	Uniform bool     // every path at or below the root gets Effect
	Effect  Effect   // of a path that no exception covers
	Except  []string // literal prefixes at or below the root where it may differ
}

// RedirectTo is the replacement of a redirected request.
type RedirectTo struct {
	Command      string
	Args         []string
	ArgsAppend   []string
	Environment  map[string]string
	Path         string // file rules: the directory written to instead
	PreserveTree bool   // file rules: keep the original path below Path
	Signal       int    // signal rules: sent instead
}
