// Package agentsh is the map of the project; doc is written with the walks.
package agentsh

import _ "embed"

// BashStartup is the script that BASH_ENV names: it disables the builtins that
// act without starting a program.
//
//go:embed bash_startup.sh
var BashStartup string
