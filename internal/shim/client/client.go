// Package client starts a shell of a shared session before the Go runtime starts. It is C:
// the entry point and a constructor of the program that imports it. What it cannot do it
// leaves to the Go program, which starts when the constructor returns.
package client

// The entry point runs before the C library has made what stack protectors read.

// #cgo CFLAGS: -O2 -Wall -Wextra -Wshadow -std=gnu11 -fno-stack-protector
// #cgo LDFLAGS: -pthread -Wl,-e,agentshentry
import "C"
