// Package vmimage makes and reads what virtual machines boot from: a kernel of the operator
// with its modules, a root disk, and the initramfs of one machine.
//
// kernel.go and modules.go read kernels. image.go and build.go make the directory of an image.
// initramfs.go writes what differs in each machine.
package vmimage
