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
	program := build(t)
	engine := testenv.Docker(t)
	for name, with := range map[string]sandbox.Container{
		"docker":             {},
		"docker as root":     {User: "0"},
		"docker with limits": {MemoryMB: 512, CPUs: 1.5, PIDs: 300, Network: "none"},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := docker.Open(docker.Config{
				Address: engine.Host, State: openState(t, t.TempDir()), Agentsh: program, Look: true, Getenv: os.Getenv,
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
}
