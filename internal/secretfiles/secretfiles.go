// Package secretfiles names the files that hold credentials, for all who look for them. The
// shipped policies have the same names; a test compares.
package secretfiles

import (
	"regexp"
	"strings"
)

// Names are files of a home that hold credentials of one program each.
var Names = []string{
	".netrc", ".npmrc", ".yarnrc.yml", ".pypirc", ".pgpass", ".my.cnf", ".mylogin.cnf", ".git-credentials", ".vault-token",
	".terraformrc", ".s3cfg", ".boto",
}

// Keys begin the names of private keys of SSH.
var Keys = []string{"id_rsa", "id_ed25519", "id_ecdsa", "id_dsa"}

// Pattern is a regular expression for text that has one of the names, without a group.
func Pattern() string {
	var all []string
	for _, name := range append(append([]string{}, Keys...), Names...) {
		all = append(all, regexp.QuoteMeta(name))
	}
	return strings.Join(all, "|")
}
