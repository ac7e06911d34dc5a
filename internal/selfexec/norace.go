//go:build !race

package selfexec

var environment []string
