package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// TestAnOldGoFetchesThatOfTheModule runs go.sh with a Go as that of Debian 12 and of Debian 13, which know no
// experiments of later ones.
func TestAnOldGoFetchesThatOfTheModule(t *testing.T) {
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`(?m)^go (\S+)$`).FindSubmatch(mod)
	if version == nil {
		t.Fatal("go.mod names no Go")
	}
	for there, want := range map[string]string{"go1.19.8": "local later build x\n", "go1.24.4": "auto later build x\n"} {
		dir := t.TempDir()
		fetched := filepath.Join(dir, "golang.org/toolchain@v0.0.1-go"+string(version[1])+".linux-"+runtime.GOARCH)
		for name, script := range map[string]string{
			filepath.Join(dir, "bin/go"): `[ -z "${GOEXPERIMENT:-}" ] || { echo "go: unknown GOEXPERIMENT $GOEXPERIMENT"; exit 2; }
case $* in
version) echo go version ` + there + ` linux/` + runtime.GOARCH + ` ;;
'env GOARCH') echo ` + runtime.GOARCH + ` ;;
'env GOMODCACHE') echo ` + dir + ` ;;
'env GOROOT') cp -r ` + dir + `/archive/. ` + fetched + `; chmod +x ` + fetched + `/bin/go; echo ` + fetched + ` ;;
'mod download '*) cp -r ` + dir + `/archive/. ` + fetched + ` ;;
*) exit 3 ;;
esac
`,
			filepath.Join(dir, "archive/bin/go"):         "echo \"$GOTOOLCHAIN $GOEXPERIMENT $*\"\n",
			filepath.Join(dir, "archive/bin/gofmt"):      "",
			filepath.Join(dir, "archive/pkg/tool/a/vet"): "",
			filepath.Join(fetched, "empty"):              "",
		} {
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				t.Fatal(err)
			}
			mode := os.FileMode(0o644) // a module has no modes
			if name == filepath.Join(dir, "bin/go") {
				mode = 0o755
			}
			if err := os.WriteFile(name, []byte("#!/bin/sh\n"+script), mode); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command("packaging/go.sh", "build", "x")
		cmd.Env = []string{"PATH=" + filepath.Join(dir, "bin") + ":/usr/bin:/bin", "GOEXPERIMENT=later"}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.HasSuffix(string(out), want) {
			t.Errorf("%s: %v\n%s", there, err, out)
		}
	}
}
