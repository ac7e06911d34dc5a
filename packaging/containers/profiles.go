// Package containers has the profiles for containers in which sessions have full strength.
// doc/platforms/docker.md says which flags belong to each.
package containers

import _ "embed"

// SeccompUser is the seccomp profile of a container without root.
//
//go:embed seccomp-user.json
var SeccompUser string

// SeccompRoot is the seccomp profile of a container of root.
//
//go:embed seccomp-root.json
var SeccompRoot string
