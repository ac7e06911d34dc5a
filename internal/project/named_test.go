package project

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/internal/layout"
)

func TestAPolicyOfThePackagesHasAName(t *testing.T) {
	packs = t.TempDir()
	defer func() { packs = layout.Policies }()
	here := t.TempDir()
	t.Chdir(here)
	for _, file := range []string{
		packs + "/agent-sandbox.yaml", packs + "/agent-sandbox_test.yaml", packs + "/both.yaml", packs + "/dir.yaml",
		here + "/both", here + "/own", here + "/own.yaml",
	} {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(here+"/dir", 0o700); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"agent-sandbox": packs + "/agent-sandbox.yaml", "dir": packs + "/dir.yaml", "own": "own", "own.yaml": "own.yaml",
		"./both": "./both", "agent-sandbox_test": "agent-sandbox_test", "agent-sandbox.yaml": "agent-sandbox.yaml",
		"nosuch": "nosuch", "": "", "../agent-sandbox": "../agent-sandbox", "*": "*",
	} {
		if got, err := Named(name); got != want || err != nil {
			t.Errorf("%q is %q, %v, want %q", name, got, err, want)
		}
	}
	if got, err := Named("both"); err == nil || !strings.Contains(err.Error(), "write ./both or "+packs+"/both.yaml") {
		t.Errorf("a name that is both is %q, %v", got, err)
	}
	for name, want := range map[string]string{
		"agent-sandbox.yaml":     "write 'agent-sandbox' for the policy of the packages, " + packs + "/agent-sandbox.yaml",
		"x/y/agent-sandbox.yaml": "write 'agent-sandbox'",
		"agent-sandbx":           "Or name a policy of the packages: agent-sandbox, both, dir",
	} {
		if got := MissingHint(name, &fs.PathError{Err: fs.ErrNotExist}); !strings.Contains(got, want) {
			t.Errorf("%s does not exist: %q, want %q", name, got, want)
		}
	}
	if got := MissingHint("own", fs.ErrPermission); got != "" {
		t.Errorf("a file that cannot be read: %q", got)
	}
	packs = filepath.Join(packs, "none")
	if got := MissingHint("agent-sandbox", fs.ErrNotExist); !strings.HasSuffix(got, "No policies of the packages are in "+packs) {
		t.Errorf("without packages: %q", got)
	}
}
