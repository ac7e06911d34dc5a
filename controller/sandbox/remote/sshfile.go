package remote

import (
	"os/exec"
	"slices"
)

// SSHFile is the carrier of the ssh program with a configuration file, which names a host. command starts a shell
// there.
func SSHFile(file, host string, command ...string) Carrier {
	argv := slices.Insert(slices.Clone(sshWords), 1, "-F", file)
	argv = append(argv, "--", host)
	return program{"ssh:" + host, append(argv, command...)}
}

// CheckSSH reports whether this machine has the ssh program.
func CheckSSH() error {
	_, err := exec.LookPath(sshWords[0])
	return err
}
