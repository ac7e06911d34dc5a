package remote

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"agentsh/internal/testenv"
)

// mounted are shells in a mount namespace of their own, where options say what the file system of the home is.
func mounted(t *testing.T, options string) map[string]string {
	t.Helper()
	testenv.Need(t, testenv.UserNS)
	all := map[string]string{}
	for name, shell := range shells(t) {
		all[name] = `exec:unshare -rm sh -c 'mount -t tmpfs none /var/tmp && mount -t tmpfs -o ` + options + ` none /mnt && HOME=/mnt exec ` + shell + `'`
	}
	return all
}

// enterAt sends the program to a place by its address.
func enterAt(t *testing.T, connect string, programs map[string]supervisor) error {
	t.Helper()
	c, err := Parse(connect, "")
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Open(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Kill()
	if err = enter(context.Background(), s, programs); err != nil {
		err = explain(s, err)
	}
	return err
}

func TestAHomeWithoutProgramsIsNoHome(t *testing.T) {
	for name, connect := range mounted(t, "noexec") {
		if err := enterAt(t, connect, fakeProgram(t, "one")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAFullHomeSaysWhereAndWhatToDo(t *testing.T) {
	programs := fakeProgram(t, "one")
	for arch, p := range programs { // more than a socket takes
		if err := os.Truncate(p.path, 8<<20); err != nil {
			t.Fatal(err)
		}
		p.size = 8 << 20
		programs[arch] = p
	}
	for name, connect := range mounted(t, "size=64k") {
		err := enterAt(t, connect, programs)
		if err == nil || !strings.Contains(err.Error(), "/mnt/.cache/agentsh: only a part of the program could be written: free") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAProgramThatIsNamedIsUsedOrRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "text"), []byte("no program"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, named := range []string{filepath.Join(dir, "missing"), filepath.Join(dir, "text")} {
		if found, err := findSupervisors(named); err == nil || !strings.Contains(err.Error(), named) {
			t.Errorf("%s: %v, %v", named, found, err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if found, err := findSupervisors(self); err != nil || found[runtime.GOARCH] != self {
		t.Errorf("%v, %v", found, err)
	}
}
