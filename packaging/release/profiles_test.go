package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"testing"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

var update = flag.Bool("update", false, "write the profiles of packaging/containers")

// userCalls are what a session of a user needs beyond the engines' default profile. The
// supervisor makes them in a user namespace or on processes of its own user.
var userCalls = []string{
	"clone", "unshare", // namespaces
	"mount", "umount2", "pivot_root", "fsopen", "fsconfig", "fsmount", "move_mount", "open_tree", "mount_setattr", // its root directory
	"sethostname",   // the name of its own machine
	"pidfd_getfd",   // connections that the supervisor makes for commands
	"fanotify_init", // what others edit in the workspace
}

// rootCalls are what a session of root needs beyond the capabilities in the documentation.
var rootCalls = []string{"pivot_root"}

// TestContainerProfiles: the profiles in the packages are the default of Docker and podman and
// the calls above. -update writes them.
func TestContainerProfiles(t *testing.T) {
	for name, extra := range map[string]seccomp.Syscall{
		"seccomp-user.json": {LinuxSyscall: specs.LinuxSyscall{Names: userCalls, Action: specs.ActAllow}},
		"seccomp-root.json": {LinuxSyscall: specs.LinuxSyscall{Names: rootCalls, Action: specs.ActAllow},
			Includes: &seccomp.Filter{Caps: []string{"CAP_SYS_ADMIN"}}},
	} {
		profile := seccomp.DefaultProfile()
		profile.Syscalls = append([]*seccomp.Syscall{&extra}, profile.Syscalls...)
		want, err := json.MarshalIndent(profile, "", "\t")
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, '\n')
		file := "packaging/containers/" + name
		if *update {
			if err := os.WriteFile(file, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what go test ./packaging/release -run TestContainerProfiles -update writes", file)
		}
	}
}
