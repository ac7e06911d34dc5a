// Package fuse is the governed view of a session's directories: a file server
// that judges every operation by policy on the path inside the sandbox and
// carries it out on the backing directory.
//
// The session init opens /dev/fuse and mounts it in the session's mount
// namespace; [Run], in a process of its own that never forks, answers the
// kernel's requests. The supervisor holds the other end of a control socket
// ([Control]): it sends the [Config], receives events, asks for the change
// record and announces what it wrote to a backing itself. When the control
// socket closes the server ends, and every mount answers ENOTCONN.
//
// Rules the code keeps:
//   - A path is judged and used under one lock against renames, and the backing
//     is reached by that same path, beneath its descriptor and through no
//     symbolic link ([backing]).
//   - No handler touches a file that is served by the server itself.
//   - Unknown, unreadable and panicking mean EACCES.
package fuse
