// Package keep stores what a user may want back: files that soft_delete saved,
// the content that changed files had, and checkpoints of a workspace. All of it
// lies in one directory outside every session's view, of mode 0700.
//
// The content of a workspace belongs to untrusted commands, so it is reached
// beneath a descriptor of its root and through no symbolic link, as the file
// server does.
package keep
