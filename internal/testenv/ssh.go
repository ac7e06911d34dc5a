package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// SSHPlace puts an ssh program before those of PATH that starts a sshd of its own, with
// keys and a configuration in a directory. The state directory there is dir/place. It
// returns the address.
func SSHPlace(t *testing.T, dir string) string {
	t.Helper()
	Need(t, Root, Program("ssh"), Program("sshd"), Program("ssh-keygen"))
	sshd, err := exec.LookPath("sshd")
	if err != nil {
		t.Fatal(err)
	}
	ssh, err := exec.LookPath("ssh")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll("/run/sshd", 0o755); err != nil { // sshd asks for it, see sshd(8), FILES
		t.Fatal(err)
	}
	for _, key := range []string{"host", "user"} {
		generate := exec.CommandContext(t.Context(), "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, key))
		if out, err := generate.CombinedOutput(); err != nil {
			t.Fatalf("ssh-keygen: %v\n%s", err, out)
		}
	}
	host, err := os.ReadFile(filepath.Join(dir, "host.pub"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"banner":      "Authorized users only.\n",
		"known_hosts": "place " + string(host),
		"sshd_config": fmt.Sprintf(`HostKey %[1]s/host
AuthorizedKeysFile %[1]s/user.pub
Banner %[1]s/banner
PermitRootLogin prohibit-password
PasswordAuthentication no
PidFile none
StrictModes no
UsePAM no
SetEnv XDG_STATE_HOME=%[1]s/place HOME=%[1]s
`, dir),
		"ssh_config": fmt.Sprintf(`Host *
HostKeyAlias place
IdentityFile %[1]s/user
IdentitiesOnly yes
UserKnownHostsFile %[1]s/known_hosts
StrictHostKeyChecking yes
ProxyCommand %[2]s -i -f %[1]s/sshd_config
`, dir, sshd),
		"bin/ssh": fmt.Sprintf("#!/bin/sh\nexec %s -F %s/ssh_config \"$@\"\n", ssh, dir),
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
	return "ssh://root@place.example:2299"
}
