package blaxel

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentsh/internal/blaxeldouble"
	"agentsh/internal/testenv"
)

// TestTheVendorsLibraryDrivesTheDouble runs @blaxel/core against the double. The variable has the directory in which npm
// installed it.
func TestTheVendorsLibraryDrivesTheDouble(t *testing.T) {
	dir := testenv.Asked(t, "AGENTSH_BLAXEL_SDK", "blaxel")
	testenv.Need(t, testenv.Program("node"), testenv.Program("python3"))
	d := blaxeldouble.New(t)
	d.StandsBy(100 * time.Millisecond)
	data, err := os.ReadFile("testdata/drive.mjs")
	if err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(dir, "drive.mjs") // beside node_modules, where node looks
	if err := os.WriteFile(script, data, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "node", script)
	cmd.Env = append(os.Environ(), "DO_NOT_TRACK=1", "BL_DISABLE_H2=true", "BL_DISABLE_CONTROL_PLANE_H2=true", "HOME="+t.TempDir())
	for _, name := range []string{"BL_API_URL", "BL_API_KEY", "BL_WORKSPACE", "BL_REGION"} {
		cmd.Env = append(cmd.Env, name+"="+d.Getenv(name))
	}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "driven") {
		t.Fatalf("%v\n%s", err, out)
	}
	if left := d.Names(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}
