// Package policy holds the scripts that agentsh policy probe runs against a
// policy: one directory for each kind of target (command, file, net).
//
// Each script is run by sh in an empty directory with T the target. It prints M,
// or what only the target holds or says, when it gets through.
package policy

import "embed"

// Scripts holds KIND/NAME.sh.
//
//go:embed command/*.sh file/*.sh net/*.sh
var Scripts embed.FS
