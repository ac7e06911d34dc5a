// Package snapshot stores the states of a workspace: checkpoints, the previous
// content of changed files and the change record of each session. A [Store] is
// one directory of mode 0700 that no session shows; it also holds the trash of
// each session (internal/trash).
//
// store.go opens the store and its sessions. checkpoint.go creates and lists
// checkpoints, scan.go reads the workspace, digest.go its files, rollback.go
// restores a checkpoint, diff.go compares. freeze.go stops commands meanwhile.
//
// Untrusted commands write to the workspace. It is reached beneath a descriptor
// of its root and through no symbolic link (internal/beneath).
package snapshot
