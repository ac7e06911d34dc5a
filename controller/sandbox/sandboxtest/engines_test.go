package sandboxtest

import (
	"os"
	"testing"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/docker"
	"agentsh/internal/testenv"
)

// thisMachine shows the programs of this machine in a container.
var thisMachine = []sandbox.Mount{{Source: "/usr", Target: "/usr"}, {Source: "/etc/alternatives", Target: "/etc/alternatives"}}

func TestContainerEngines(t *testing.T) {
	testenv.Asked(t, "AGENTSH_ENGINES", "engines")
	program := testenv.Agentsh(t)
	limits := sandbox.Container{MemoryMB: 512, CPUs: 1.5, PIDs: 300, Network: "none"}
	for _, e := range []struct {
		name  string
		start func(t *testing.T) *testenv.Engine
		rows  map[string]sandbox.Container
	}{
		{"docker", func(t *testing.T) *testenv.Engine { t.Helper(); return testenv.Docker(t) },
			map[string]sandbox.Container{"a user": {}, "root": {User: "0"}, "limits": limits}},
		{"podman", testenv.Podman, map[string]sandbox.Container{"a user": {}, "root": {User: "0"}, "limits": limits}},
		{"rootless podman", testenv.RootlessPodman,
			map[string]sandbox.Container{"a user": {}, "root": {User: "0"}, "no network": {Network: "none"}}},
	} {
		t.Run(e.name, func(t *testing.T) {
			engine := e.start(t)
			for name, with := range e.rows {
				t.Run(name, func(t *testing.T) {
					b, err := docker.Open(docker.Config{
						Name: engine.Backend, Address: engine.Host, State: openState(t, t.TempDir()), Agentsh: program, Look: true, Getenv: os.Getenv,
					})
					if err != nil {
						t.Fatal(err)
					}
					with.Image.Name, with.Mounts = testenv.EngineImage, thisMachine
					Run(t, b, with)
					if left := engine.Containers(t); left != "[]" {
						t.Errorf("left: %s", left)
					}
				})
			}
		})
	}
}
