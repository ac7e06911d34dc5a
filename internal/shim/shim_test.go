package shim

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"agentsh/internal/testenv"
)

// layout is a root to be made: "dir/", "name -> text" or a file with its name as
// content.
func makeRoot(t testing.TB, layout ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, l := range layout {
		name, text, link := strings.Cut(l, " -> ")
		at := filepath.Join(root, name)
		var err error
		switch {
		case link:
			err = os.Symlink(text, at)
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(at, 0o755)
		default:
			err = os.WriteFile(at, []byte(name), 0o751)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// program is a file that stands for agentsh.
func programFile(t testing.TB, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "agentsh")
	if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return name
}

var layouts = map[string]struct {
	files []string
	want  map[string]string // path of the shim: its original
}{
	"a merged /usr with dash": {
		[]string{"usr/bin/", "bin -> usr/bin", "usr/bin/dash", "usr/bin/bash", "usr/bin/sh -> dash"},
		map[string]string{"usr/bin/sh": "usr/bin/dash", "usr/bin/bash": "usr/lib/agentsh/shells/usr-bin-bash"}},
	"sh is bash": {
		[]string{"usr/bin/", "bin -> /usr/bin", "usr/bin/bash", "usr/bin/sh -> /bin/bash"},
		map[string]string{"usr/bin/sh": "usr/lib/agentsh/shells/usr-bin-bash", "usr/bin/bash": "usr/lib/agentsh/shells/usr-bin-bash"}},
	"busybox": {
		[]string{"bin/", "usr/bin/", "bin/busybox", "bin/sh -> /bin/busybox"},
		map[string]string{"bin/sh": "bin/busybox"}},
	"directories of their own": {
		[]string{"bin/", "usr/bin/", "bin/sh", "bin/bash", "usr/bin/bash -> ../../bin/bash"},
		map[string]string{
			"bin/sh":       "usr/lib/agentsh/shells/bin-sh",
			"bin/bash":     "usr/lib/agentsh/shells/bin-bash",
			"usr/bin/bash": "usr/lib/agentsh/shells/bin-bash",
		}},
}

func TestShellsAreReplacedAndPutBack(t *testing.T) {
	for name, tt := range layouts {
		t.Run(name, func(t *testing.T) {
			root := makeRoot(t, tt.files...)
			before := picture(t, root)
			self := programFile(t, "agentsh 1")
			for range 2 { // the second time changes nothing
				states, err := Install(root, self, "")
				if err != nil {
					t.Fatal(err)
				}
				checkSound(t, states, len(tt.want))
				checkShells(t, root, tt.want)
			}
			states, err := Install(root, programFile(t, "agentsh 2"), "")
			if err != nil {
				t.Fatal(err)
			}
			checkSound(t, states, len(tt.want))
			checkShells(t, root, tt.want)
			for range 2 {
				if err := Uninstall(root); err != nil {
					t.Fatal(err)
				}
				if after := picture(t, root); after != before {
					t.Errorf("after uninstall:\n%s\nbefore:\n%s", after, before)
				}
			}
		})
	}
}

func checkSound(t *testing.T, states []State, want int) {
	t.Helper()
	if len(states) != want || slices.ContainsFunc(states, func(s State) bool { return !s.Sound }) {
		t.Errorf("%+v", states)
	}
}

func checkShells(t *testing.T, root string, want map[string]string) {
	t.Helper()
	shells, err := Shells(root)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, s := range shells {
		got[s.Path] = s.Real
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("shells are %v instead of %v", got, want)
	}
}

// picture tells everything of a root that must come back: names, kinds, modes,
// owners, contents, links, times of files.
func picture(t testing.TB, root string) string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, name)
		if strings.HasPrefix(rel, "usr/lib") || rel == "usr" && !d.IsDir() {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		line := fmt.Sprint(rel, " ", info.Mode(), " ", st.Uid, ":", st.Gid)
		switch {
		case info.Mode().IsRegular():
			data, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %x %v", sha256.Sum256(data), info.ModTime())
		case info.Mode()&fs.ModeSymlink != 0:
			text, err := os.Readlink(name)
			if err != nil {
				return err
			}
			line += " -> " + text
		}
		out = append(out, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(out, "\n")
}

func TestAShellReplacedByAPackageIsNotTheShim(t *testing.T) {
	root := makeRoot(t, "usr/bin/", "bin -> usr/bin", "usr/bin/bash", "usr/bin/sh -> bash")
	self := programFile(t, "agentsh")
	if _, err := Install(root, self, ""); err != nil {
		t.Fatal(err)
	}
	upgraded := filepath.Join(root, "usr/bin/bash")
	if err := os.Remove(upgraded); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(upgraded, []byte("bash of another version"), 0o755); err != nil {
		t.Fatal(err)
	}
	states, err := Status(root)
	if err != nil || !slices.ContainsFunc(states, func(s State) bool { return s.Path == "/usr/bin/bash" && !s.Sound }) {
		t.Errorf("%+v %v", states, err)
	}
	if states, err = Install(root, self, ""); err != nil {
		t.Fatal(err)
	}
	checkSound(t, states, 2)
	if err := Uninstall(root); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(upgraded); err != nil || string(data) != "bash of another version" {
		t.Errorf("%q %v", data, err)
	}
}

func TestAMissingOrChangedOriginalIsReported(t *testing.T) {
	root := makeRoot(t, "bin/", "bin/sh")
	if _, err := Install(root, programFile(t, "agentsh"), ""); err != nil {
		t.Fatal(err)
	}
	saved := filepath.Join(root, "usr/lib/agentsh/shells/bin-sh")
	if err := os.WriteFile(saved, []byte("something else"), 0); err != nil {
		t.Fatal(err)
	}
	if states, err := Status(root); err != nil || states[0].Sound || !strings.Contains(states[0].Text, "has been changed") {
		t.Errorf("%+v %v", states, err)
	}
	if err := os.Remove(saved); err != nil {
		t.Fatal(err)
	}
	if states, err := Status(root); err != nil || states[0].Sound || !strings.Contains(states[0].Text, "is lost") {
		t.Errorf("%+v %v", states, err)
	}
	if shells, err := Shells(root); err == nil {
		t.Errorf("a shell without its original: %+v", shells)
	}
	if err := Uninstall(root); err == nil {
		t.Error("uninstalled without an original")
	}
}

func TestRootsThatAreRefused(t *testing.T) {
	for name, files := range map[string][]string{
		"no shell":                    {"bin/"},
		"a link to nowhere":           {"bin/", "bin/sh -> none"},
		"a link to itself":            {"bin/", "bin/sh -> sh"},
		"a directory":                 {"bin/sh/"},
		"the shim without a manifest": {"bin/", "bin/sh"},
	} {
		root := makeRoot(t, files...)
		before := picture(t, root)
		self := programFile(t, "bin/sh") // of the same content
		if _, err := Install(root, self, ""); err == nil {
			t.Errorf("%s: installed", name)
		} else {
			t.Logf("%s: %v", name, err)
		}
		if after := picture(t, root); !strings.HasPrefix(after, before) {
			t.Errorf("%s: changed\n%s\nbefore\n%s", name, after, before)
		}
	}
}

func TestAManifestIsReadStrictly(t *testing.T) {
	root := makeRoot(t, "bin/", "bin/sh", "usr/lib/agentsh/shells/")
	for _, text := range []string{"", "{", `{"version": 2}`, strings.Repeat(" ", maxManifest+1)} {
		if err := os.WriteFile(filepath.Join(root, manifest), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Shells(root); err == nil {
			t.Errorf("%.20q was read", text)
		}
	}
}

func TestNamesOfShells(t *testing.T) {
	for _, argv0 := range []string{"sh", "/bin/sh", "-sh", "-bash", "bash", "/usr/bin/dash", "../ash"} {
		if !Name(argv0, "/usr/bin/agentsh") {
			t.Errorf("%s is no shell", argv0)
		}
	}
	for _, argv0 := range []string{"agentsh", "/usr/bin/agentsh", "", "-", "shell", "agentsh-init"} {
		if Name(argv0, "/usr/bin/agentsh") {
			t.Errorf("%q is a shell", argv0)
		}
		if !Name(argv0, "/usr/bin/bash") {
			t.Errorf("bash called %q is no shell", argv0)
		}
	}
}

// TestKilledAnywhere kills installing and uninstalling at every change of a
// name. The root must have working shells then, and both must still succeed.
func TestKilledAnywhere(t *testing.T) {
	if root := os.Getenv("AGENTSH_TEST_SHIM_ROOT"); root != "" {
		killedHere(t, root)
		return
	}
	testenv.Need(t, testenv.Program("strace"))
	calls := []string{"mkdirat", "linkat", "renameat", "renameat2", "unlinkat", "symlinkat", "fchmodat", "fsync"}
	self := programFile(t, "agentsh")
	kills := 0
	for _, do := range []string{"install", "uninstall"} {
		for _, call := range calls {
			for n := 1; n < 30; n++ {
				root := makeRoot(t, layouts["a merged /usr with dash"].files...)
				before := picture(t, root)
				if do == "uninstall" {
					if _, err := Install(root, self, ""); err != nil {
						t.Fatal(err)
					}
				}
				if !killed(t, do, root, self, fmt.Sprintf("%s:signal=KILL:when=%d", call, n)) {
					break
				}
				kills++
				checkAfterKill(t, root, self, before)
				if t.Failed() {
					t.Fatalf("%s killed at %s %d", do, call, n)
				}
			}
		}
	}
	if kills < 15 {
		t.Errorf("killed %d times only", kills)
	}
	t.Logf("killed %d times", kills)
}

func killedHere(t *testing.T, root string) {
	runtime.LockOSThread() // strace counts calls by thread
	defer runtime.UnlockOSThread()
	var err error
	if os.Getenv("AGENTSH_TEST_SHIM") == "install" {
		_, err = Install(root, os.Getenv("AGENTSH_TEST_SHIM_PROGRAM"), "")
	} else {
		err = Uninstall(root)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func killed(t *testing.T, do, root, self, inject string) bool {
	t.Helper()
	test, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	name, _, _ := strings.Cut(inject, ":")
	cmd := exec.Command(
		"strace",
		"-f",
		"-qq",
		"-o",
		"/dev/null",
		"-e",
		"trace="+name,
		"-e",
		"inject="+inject,
		test,
		"-test.run=^TestKilledAnywhere$",
	)
	cmd.Env = append(os.Environ(), "AGENTSH_TEST_SHIM="+do, "AGENTSH_TEST_SHIM_ROOT="+root, "AGENTSH_TEST_SHIM_PROGRAM="+self)
	out, err := cmd.CombinedOutput()
	if err == nil {
		return false
	}
	if strings.Contains(string(out), "FAIL") {
		t.Fatalf("%s: %v\n%s", inject, err, out)
	}
	return true
}

// checkAfterKill looks at what a shell of the root is, and ends both ways.
func checkAfterKill(t *testing.T, root, self, before string) {
	t.Helper()
	shells, err := Shells(root)
	if err != nil {
		t.Error(err)
	}
	for name, content := range map[string]string{"bin/sh": "usr/bin/dash", "bin/bash": "usr/bin/bash"} {
		data, err := os.ReadFile(filepath.Join(root, name))
		shim := slices.ContainsFunc(shells, func(s Shell) bool {
			real, err := os.ReadFile(filepath.Join(root, s.Real))
			return s.Path == "usr/"+name && err == nil && string(real) == content
		})
		if err != nil || string(data) != content && (string(data) != "agentsh" || !shim) {
			t.Errorf("%s is %q, %v", name, data, err)
		}
	}
	if states, err := Install(root, self, ""); err != nil {
		t.Error(err)
	} else {
		checkSound(t, states, 2)
	}
	if err := Uninstall(root); err != nil {
		t.Error(err)
	}
	if after := picture(t, root); after != before {
		t.Errorf("after all:\n%s\nbefore:\n%s", after, before)
	}
}
