//go:build race

package policy

// raceDetector drops what is put into pools now and then, so allocations are
// not counted under it.
const raceDetector = true
