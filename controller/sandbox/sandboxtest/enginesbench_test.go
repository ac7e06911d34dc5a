package sandboxtest

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/docker"
	"agentsh/internal/testenv"
	"agentsh/internal/wire"
)

// TestAContainerStartsSoon prints how long a sandbox in a container takes until its first command
// has ended, and what 'docker run IMAGE true' takes beside it. bench/engines.sh runs it.
func TestAContainerStartsSoon(t *testing.T) {
	testenv.Asked(t, "AGENTSH_ENGINE_TIMES", "engines")
	program, engine := testenv.Agentsh(t), testenv.Docker(t)
	b, err := docker.Open(docker.Config{
		Name: engine.Backend, Address: engine.Host, State: openState(t, t.TempDir()), Agentsh: program, Getenv: os.Getenv,
	})
	if err != nil {
		t.Fatal(err)
	}
	s := spec("starts-1")
	s.Container.Mounts = thisMachine
	if s.Container.Image, err = b.Pull(t.Context(), testenv.EngineImage); err != nil {
		t.Fatal(err)
	}
	var ours, theirs time.Duration
	const rounds = 10
	for range rounds {
		began := time.Now()
		box, err := b.Create(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		_, err = box.Ready(t.Context())
		if err == nil {
			_, err = box.Run(t.Context(), wire.ExecRequest{Argv: []string{"true"}, Cwd: "/sandbox"}, sandbox.Streams{})
		}
		ours += time.Since(began)
		if err != nil {
			t.Fatal(err)
		}
		if err := box.Delete(t.Context()); err != nil {
			t.Fatal(err)
		}
		began = time.Now()
		run := exec.Command("docker", "--host", engine.Host, "run", "--rm", "--volume", "/usr:/usr:ro", testenv.EngineImage, "true")
		if out, err := run.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		theirs += time.Since(began)
	}
	t.Logf("first command after %s, docker run %s: %.2f times", ours/rounds, theirs/rounds, float64(ours)/float64(theirs))
}
