package boxes

import (
	"bufio"
	"context"
	"io"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/controller/sandbox"
	"agentsh/internal/layout"
	"agentsh/internal/statedir"
	"agentsh/internal/wire"
)

// endless is a sandbox whose files never come.
type endless struct{ sandbox.Executor }

func (endless) Stat(context.Context, string) (wire.FileInfo, error) {
	return wire.FileInfo{Type: "dir"}, nil
}

func (endless) List(context.Context, string) ([]wire.FileInfo, error) { return nil, nil }

func (endless) CopyOut(_ context.Context, _ wire.CopyOut, w io.Writer) error {
	if _, err := w.Write([]byte{0}); err != nil { // it is read where the copy is made
		return err
	}
	_, _ = os.Stdout.WriteString("begun\n") // the parent fails otherwise
	select {}
}

// copies are copies of a sandbox into a directory.
var copies = map[string]func(state statedir.Dir, dir string) error{
	"cp": func(state statedir.Dir, dir string) error {
		return (&Copier{Box: endless{}, State: state}).Out(context.Background(), "/sandbox/x", dir)
	},
	"save": func(state statedir.Dir, dir string) error {
		_, err := Save(context.Background(), endless{}, state, filepath.Join(dir, "saved"))
		return err
	},
}

// TestASaveReplacesAFileAlone has something else where the files are to go: a device as /dev/null, a link as /dev/stdout. It is
// refused before anything is copied.
func TestASaveReplacesAFileAlone(t *testing.T) {
	dir := t.TempDir()
	state, err := statedir.Open(layout.State(filepath.Join(dir, "state")))
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, made := range map[string]error{
		"fifo": unix.Mkfifo(at("fifo"), 0o600), "dir": os.Mkdir(at("dir"), 0o700), "link": os.Symlink("fifo", at("link")),
		"dangling": os.Symlink("nothing", at("dangling")),
	} {
		if made != nil {
			t.Fatal(made)
		}
		before, _ := os.Lstat(at(name))
		_, err := Save(t.Context(), endless{}, state, at(name))
		after, _ := os.Lstat(at(name))
		if err == nil || !strings.Contains(err.Error(), name+" is no regular file") || !os.SameFile(before, after) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestACopyThatIsKilledLeavesNothing has this program killed while it copies. What it has made is swept then.
func TestACopyThatIsKilledLeavesNothing(t *testing.T) {
	const variable = "AGENTSH_TEST_COPY_TO"
	for name, copied := range copies {
		t.Run(name, func(t *testing.T) {
			dir := os.Getenv(variable)
			killed := dir != ""
			if !killed {
				dir = t.TempDir()
			}
			state, err := statedir.Open(layout.State(filepath.Join(dir, "state")))
			if err != nil {
				t.Fatal(err)
			}
			if killed {
				t.Fatal(copied(state, dir))
			}
			cmd := osexec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
			cmd.Env = append(os.Environ(), variable+"="+dir)
			out, err := cmd.StdoutPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			if line, err := bufio.NewReader(out).ReadString('\n'); line != "begun\n" {
				t.Errorf("%q %v", line, err)
			}
			if found, err := state.SweepTemporary(false); err != nil || len(found) > 0 {
				t.Errorf("a copy that goes on is swept: %v %v", found, err)
			}
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // it is killed
			if left, err := filepath.Glob(filepath.Join(dir, ".agentctl-*")); err != nil || len(left) != 1 {
				t.Errorf("before: %v %v", left, err)
			}
			if _, err := state.SweepTemporary(false); err != nil {
				t.Error(err)
			}
			if left, err := filepath.Glob(filepath.Join(dir, ".agentctl-*")); err != nil || len(left) > 0 {
				t.Errorf("after: %v %v", left, err)
			}
		})
	}
}
