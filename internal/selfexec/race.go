//go:build race

package selfexec

var environment = []string{"GORACE=atexit_sleep_ms=0"}
