// Package client starts a shell of a shared session before the Go runtime starts. It is C:
// a constructor of the program that imports it. What it cannot do it leaves to the Go
// program, which starts when the constructor returns.
package client

// #cgo CFLAGS: -O2 -Wall -Wextra -Wshadow -std=gnu11
// #cgo LDFLAGS: -pthread
import "C"
