package sandboxes_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentsh/internal/testenv"
	"agentsh/sandboxes"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// world is a directory with both programs on PATH and the policy of the examples, in which the test runs.
func world(t *testing.T) {
	t.Helper()
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE, testenv.Program("git"))
	bin := testenv.Programs(t)
	dir := t.TempDir()
	policy, err := os.ReadFile("../examples/policies/demo.yaml")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "policy.yaml"), policy, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv("XDG_STATE_HOME", filepath.Join(dir, "state"))
	t.Setenv("TMPDIR", filepath.Join(dir, "tmp"))
	if err := os.Mkdir(filepath.Join(dir, "tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	t.Cleanup(func() {
		if left, err := os.ReadDir(filepath.Join(dir, "tmp")); err != nil || len(left) > 0 {
			t.Errorf("left: %v %v", left, err)
		}
		if left, err := os.ReadDir(filepath.Join(dir, "state", "agentsh", "sandboxes")); err != nil || len(left) > 0 {
			t.Errorf("left: %v %v", left, err)
		}
	})
}

// printed is what an example prints.
func printed(t *testing.T, example func()) string {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out := os.Stdout
	os.Stdout = write
	defer func() { os.Stdout = out }()
	got := make(chan string, 1)
	go func() {
		data, _ := io.ReadAll(read)
		got <- string(data)
	}()
	example()
	if err := write.Close(); err != nil {
		t.Fatal(err)
	}
	return <-got
}

func TestExamplesPrintWhatTheySay(t *testing.T) {
	source, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	world(t)
	for name, example := range map[string]func(){
		"Example": Example, "ExampleSandbox_Rollback": ExampleSandbox_Rollback, "ExampleSandbox_Save": ExampleSandbox_Save,
	} {
		_, text, _ := strings.Cut(string(source), "func "+name+"() {")
		text, _, _ = strings.Cut(text, "\n}\n")
		_, text, _ = strings.Cut(text, "// Prints:\n")
		want := strings.ReplaceAll(text+"\n", "\t// ", "")
		if got := printed(t, example); got != want || want == "\n" {
			t.Errorf("%s printed %q, and says %q", name, got, want)
		}
	}
}

func TestAProgramWorksInSandboxes(t *testing.T) {
	world(t)
	ctx := context.Background()
	client, err := sandboxes.Start(ctx, sandboxes.Options{Stderr: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	box, err := client.Create(ctx, sandboxes.Spec{Policy: "policy.yaml", Env: map[string]string{"GOFLAGS": "-x"}})
	if err != nil {
		t.Fatal(err)
	}
	binary := []byte("\xff\x00")
	if err := box.WriteFile(ctx, "d/b", binary, 0o600); err != nil {
		t.Fatal(err)
	}
	if data, err := box.ReadFile(ctx, "d/b"); err != nil || !bytes.Equal(data, binary) {
		t.Errorf("%q %v", data, err)
	}
	res, err := box.Run(ctx, sandboxes.Command{Argv: []string{"sh", "-c", "cat; cat b; echo $GOFLAGS $TERM >&2"}, Dir: "d", Stdin: binary,
		Env: map[string]string{"TERM": "x", "SECRET": "y"}})
	if err != nil || !bytes.Equal(res.Stdout, append(binary, binary...)) || string(res.Stderr) != "-x x\n" || len(res.Dropped) != 1 {
		t.Errorf("%+v %v", res, err)
	}
	var out bytes.Buffer
	if res, err = box.Run(ctx, sandboxes.Command{Script: "seq 100000; exit 3", Stdout: &out}); err != nil || res.ExitCode != 3 ||
		out.Len() != 588895 {
		t.Errorf("%+v %v, %d bytes", res, err, out.Len())
	}
	if res, err = box.Run(ctx, sandboxes.Command{Script: "sleep 1000", Timeout: 100 * time.Millisecond}); err != nil || res.ExitCode != 124 {
		t.Errorf("%+v %v", res, err)
	}
	cancelled, cancel := context.WithCancel(ctx)
	if _, err = box.Run(cancelled, sandboxes.Command{Script: "echo begun; sleep 98654",
		Stdout: writer(func([]byte) { cancel() })}); !errors.Is(
		err,
		context.Canceled,
	) {
		t.Error(err)
	}
	if skipped, err := box.CopyIn(ctx, "policy.yaml", "d/"); err != nil || len(skipped) > 0 {
		t.Error(skipped, err)
	}
	if _, err := box.CopyOut(ctx, "d", "out"); err != nil {
		t.Error(err)
	}
	if list, err := box.ReadDir(ctx, "d"); err != nil || len(list) != 2 || list[1].Name != "policy.yaml" {
		t.Errorf("%+v %v", list, err)
	}
	if err := box.Remove(ctx, "d"); err != nil {
		t.Error(err)
	}
	if _, err := box.ReadFile(ctx, "d/b"); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Error(err)
	}
	var failed *sandboxes.Error
	if _, err := client.Create(ctx, sandboxes.Spec{Policy: "nosuch.yaml"}); !errors.As(err, &failed) {
		t.Error(err)
	}
	if err := box.Delete(ctx); err != nil {
		t.Error(err)
	}
	if _, err := box.Run(ctx, sandboxes.Command{Script: "true"}); err == nil {
		t.Error("a deleted sandbox ran a command")
	}
	for range 2 {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := client.Create(ctx, sandboxes.Spec{Policy: "policy.yaml"}); !errors.Is(err, sandboxes.ErrClosed) {
		t.Error(err)
	}
}

// TestAnOutputThatIsNotTakenHoldsItsCommandAlone has a writer that takes nothing of 20 MB, until other commands have run.
func TestAnOutputThatIsNotTakenHoldsItsCommandAlone(t *testing.T) {
	world(t)
	client, err := sandboxes.Start(t.Context(), sandboxes.Options{Stderr: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	box, err := client.Create(t.Context(), sandboxes.Spec{Policy: "policy.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	const size = 20_000_000
	begun, take := make(chan struct{}), make(chan struct{})
	taken := 0
	ended := make(chan error, 1)
	go func() {
		_, err := box.Run(t.Context(), sandboxes.Command{Script: "yes | head -c 20000000; echo done >done", Stdout: writer(func(p []byte) {
			if taken == 0 {
				close(begun)
				<-take
			}
			taken += len(p)
		})})
		ended <- err
	}()
	<-begun
	for range 20 {
		if res, err := box.Run(t.Context(), sandboxes.Command{Script: "test ! -e done"}); err != nil || res.ExitCode != 0 {
			t.Fatalf("%+v %v: the command did not wait for its output", res, err)
		}
	}
	close(take)
	if err := <-ended; err != nil || taken != size {
		t.Errorf("%v, %d bytes", err, taken)
	}
}

// writer calls a function with what is written.
type writer func([]byte)

func (w writer) Write(p []byte) (int, error) {
	w(p)
	return len(p), nil
}
