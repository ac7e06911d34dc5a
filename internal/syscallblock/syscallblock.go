// Package syscallblock has the functions of the Go runtime around a system call, for threads that wait
// in the kernel for long. A thread in a usual call keeps its processor of the runtime for up to 10 ms.
//
// The caller of Enter or EnterBlocked makes raw system calls until it calls Exit, in the same function,
// which is marked nosplit. The runtime keeps these functions for programs that use them: go.dev/issue/67401.
package syscallblock

import _ "unsafe" // for go:linkname

// Enter begins a system call that is expected to be short.
//
//go:linkname Enter runtime.entersyscall
func Enter()

// EnterBlocked begins a system call, and gives the processor of the runtime up at once.
//
//go:linkname EnterBlocked runtime.entersyscallblock
func EnterBlocked()

// Exit ends a system call.
//
//go:linkname Exit runtime.exitsyscall
func Exit()
