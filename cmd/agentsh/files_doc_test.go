package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"agentsh/internal/testenv"
)

func TestTheFilesPageIsTrue(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	if ran := runPage(t, "doc/files.md"); ran < 5 {
		t.Errorf("%d commands: the page was not read", ran)
	}
}

func TestTheNetworkPageIsTrue(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE, testenv.Landlock, testenv.Program("curl"))
	if ran := runPage(t, "doc/network.md"); ran == 0 {
		t.Error("the page was not read")
	}
}

// runPage runs the commands of a page in a workspace with the policy above them
// and compares what they print: spaces count as one, and "..." stands for any
// text of a line. It returns how many there were.
func runPage(t *testing.T, page string) int {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run, work, bin := filepath.Join(dir, "run"), filepath.Join(dir, "work"), filepath.Join(dir, "bin")
	for d, mode := range map[string]os.FileMode{run: 0o700, work: 0o755, bin: 0o755} {
		if err := os.Mkdir(d, mode); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { destroyAll(t, run) })
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(bin, "agentsh")); err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, b := range testenv.Blocks(t, "../../"+page) {
		switch {
		case strings.HasPrefix(b.Text, "version:"):
			write(t, filepath.Join(work, "policy.yaml"), b.Text)
		case b.Kind == "console":
			for _, c := range transcript(b.Text) {
				ran++
				cmd := exec.Command("bash", "-c", c.command)
				cmd.Dir = work
				cmd.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "XDG_RUNTIME_DIR=" + run,
					"XDG_STATE_HOME=" + filepath.Join(dir, "state"), "HOME=" + dir, "LC_ALL=C", "TZ=UTC"}
				out, _ := cmd.CombinedOutput() // its status shows in what it prints
				if !c.printed(string(out)) {
					t.Errorf("%s, block at line %d:\n$ %s\nprinted\n%s\nthe page says\n%s", page, b.Line, c.command, out, strings.Join(c.output, "\n"))
				}
			}
		}
	}
	return ran
}

// shownCommand is one command of a page and the lines it prints.
type shownCommand struct {
	command string
	output  []string
}

func transcript(text string) []shownCommand {
	var out []shownCommand
	for l := range strings.Lines(text) {
		l = strings.TrimSuffix(l, "\n")
		if command, ok := strings.CutPrefix(l, "$ "); ok {
			out = append(out, shownCommand{command: command})
			continue
		}
		last := &out[len(out)-1]
		last.output = append(last.output, l)
	}
	return out
}

var spaces = regexp.MustCompile(`[ \t]+`)

func (c shownCommand) printed(out string) bool {
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	if out == "" {
		lines = nil
	}
	if len(lines) != len(c.output) {
		return false
	}
	for i, want := range c.output {
		pattern := regexp.QuoteMeta(strings.TrimSpace(spaces.ReplaceAllString(want, " ")))
		pattern = strings.ReplaceAll(pattern, `\.\.\.`, ".*")
		if !regexp.MustCompile("^" + pattern + "$").MatchString(strings.TrimSpace(spaces.ReplaceAllString(lines[i], " "))) {
			return false
		}
	}
	return true
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
