// Package fuse is the file server of a session: it shows the governed directories to
// the session's commands, decides every operation by policy on the path inside the
// sandbox, and carries it out on the backing directory.
//
// The session init opens /dev/fuse and mounts it in the session's mount namespace.
// [Run], in a process of its own that never forks, answers the kernel's requests. The
// supervisor holds the other end of a control socket ([Control]). It sends the
// [Config], receives events, asks for the change record, and announces what it wrote
// to a backing itself. When the control socket closes, the server ends, and every
// mount answers ENOTCONN.
//
// Calls go one way:
//
//	server.go    control socket → mounts (mount.go)
//	device       /dev/fuse → dispatch.go, one method for each request
//	approve.go   calls a handler, asks a person, calls it again
//	handlers     lookup, setattr, data, directories, create, rename (and remove), xattr
//	concerns     redirect, trash, repository (with stage.go) → nodefiles → handles
//	files.go     paths → backing directory and change record
//	access.go    policy → verdict → event (events.go)
//	host.go      changes behind the mounts → kernel, change record, events, replays.go
//
// Below are the packages fuse/tree (nodes and names), fuse/changes (the change record),
// fuse/locks (locks on the backing) and fuse/device (the loop and the protocol); they do
// not know each other.
//
// Rules for handlers:
//   - A path is decided on and used under one lock against renames ([tree.Tree.Moves]).
//     The backing is reached by that same path, beneath its descriptor and through no
//     symbolic link.
//   - No handler uses a file that the server itself serves.
//   - What is unknown or unreadable, and a panic, mean EACCES.
package fuse
