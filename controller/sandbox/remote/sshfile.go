package remote

import (
	"os/exec"
	"slices"
)

// SSHFile is the carrier of the ssh program with a configuration file, which names a host. It asks for the shell of the user there, and not
// for a command.
func SSHFile(file, host string) Carrier {
	argv := slices.Insert(slices.Clone(sshWords), 1, "-F", file)
	return program{"ssh:" + host, append(argv, "--", host)}
}

// CheckSSH reports whether this machine has the ssh program.
func CheckSSH() error {
	_, err := exec.LookPath(sshWords[0])
	return err
}
