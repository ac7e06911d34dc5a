//go:build race

package policy_test

// raceDetector drops what is put into pools now and then, so allocations are
// not counted under it.
const raceDetector = true
