package main

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"agentsh/controller"
	"agentsh/internal/testenv"
)

// inContainer is the harness of a container that has the programs of this machine.
const inContainer = "image: " + testenv.EngineImage + `
container:
  mounts: [{source: /usr, target: /usr}, {source: /etc/alternatives, target: /etc/alternatives}]
`

// contained has the runs of a fixture in containers of an engine.
func contained(t *testing.T, e *testenv.Engine, agent, more string) *fixture {
	t.Helper()
	p := newFixture(t, agent, inContainer+more)
	p.place = []string{"--backend", e.Backend, "--connect", e.Host}
	t.Cleanup(func() { waitEmpty(t, e) }) // the engine removes them after it has told their end
	return p
}

// waitEmpty waits until an engine has no container. The deadline of the test bounds it.
func waitEmpty(t *testing.T, e *testenv.Engine) {
	t.Helper()
	for look := time.Tick(100 * time.Millisecond); e.Containers(t) != "[]"; {
		<-look
	}
}

func TestRunsInContainersOfDocker(t *testing.T) {
	t.Parallel()
	testenv.Asked(t, "AGENTSH_ENGINES", "engines")
	runsInContainers(t, testenv.Docker(t))
}

func TestRunsInContainersOfPodman(t *testing.T) {
	t.Parallel()
	testenv.Asked(t, "AGENTSH_ENGINES", "engines")
	runsInContainers(t, testenv.Podman(t))
}

func runsInContainers(t *testing.T, e *testenv.Engine) {
	t.Run("the example", func(t *testing.T) {
		runExample(t, "\n"+inContainer, "--backend", e.Backend, "--connect", e.Host)
	})
	t.Run("what a harness says of the container", func(t *testing.T) {
		p := contained(t, e, `touch /usr/new || echo two >a.txt; echo waiting; until [ -e /sandbox/workspace/go ]; do sleep 0.1; done`,
			"  memory_mb: 300\n  pids: 200\n  cpus: 0.5\n  network: none\n  user: '1234:1234'\n")
		run := p.startAs("| waiting", p.runArgs())
		_, id, _ := strings.Cut(e.Containers(t), `"Id":"`)
		said := e.Ask(t, http.MethodGet, "/containers/"+id[:min(len(id), 64)]+"/json", nil)
		for _, want := range []string{`"Memory":314572800`, `"PidsLimit":200`, `"NanoCpus":500000000`, `"NetworkMode":"none"`, `"User":"1234:1234"`,
			`"AutoRemove":true`, `"Privileged":false`, `"no-new-privileges"`} {
			if !strings.Contains(said, want) {
				t.Errorf("no %s in %s", want, said)
			}
		}
		if !strings.Contains(said, `"CapAdd":null,"CapDrop":["ALL"]`) && // podman names those that it dropped
			(!strings.Contains(said, `"CapAdd":[],"CapDrop":[`) || !strings.Contains(said, `"SETUID"`)) {
			t.Errorf("capabilities: %s", said)
		}
		if out, errs, code := p.try("", "sandbox", "exec", "latest", "--", "touch", "/sandbox/workspace/go"); code != 0 {
			t.Errorf("exec: %d %q %s", code, out, errs)
		}
		var r controller.Result
		code := run.wait()
		p.readJSON("out/result.json", &r)
		if code != 0 || r.Backend != e.Backend || r.Image == nil || r.Image.Name != testenv.EngineImage ||
			!strings.HasPrefix(r.Image.Digest, "sha256:") || r.Image.Path != "" || len(r.Changed) != 1 {
			t.Errorf("exit code %d: %+v, image %+v", code, r.Error, r.Image)
		}
	})
	t.Run("a harness names the backend", func(t *testing.T) {
		p := contained(t, e, "true", "backend: "+e.Backend+"\nconnect: "+e.Host+"\n")
		p.place = nil
		if r, code := p.run(); code != 0 || r.Backend != e.Backend {
			t.Errorf("exit code %d: %+v", code, r.Error)
		}
		if out, errs, code := p.try("", "lint", "--repo", "repo", "harness.yaml"); code != 0 {
			t.Errorf("lint: %d %s %s", code, out, errs)
		}
		if out, errs, code := p.try("", "run", "harness.yaml", "--repo", "repo", "--backend", "local"); code != controller.ExitConfiguration ||
			!strings.Contains(errs, "harness.yaml:10:35: error: container.mounts.target: the backend local makes no container") {
			t.Errorf("local: %d %s %s", code, out, errs)
		}
	})
	t.Run("what cannot be had", func(t *testing.T) { refusedByEngine(t, e) })
	t.Run("a controller that is killed", func(t *testing.T) {
		p := contained(t, e, "cat a.txt; echo waiting; sleep 1000", "")
		run := p.startAs("| waiting", p.runArgs("--lease", "10s"))
		if err := run.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = run.cmd.Wait()
		began := time.Now()
		waitEmpty(t, e)
		if took := time.Since(began); took > 40*time.Second {
			t.Errorf("the container was there for %s", took)
		}
		if out, errs, code := p.try("", append([]string{"gc"}, p.place...)...); code != 0 || !strings.Contains(out, "removed sandbox ") {
			t.Errorf("gc: %d %q %s", code, out, errs)
		}
	})
	t.Run("a controller that is killed, and another one", func(t *testing.T) {
		p := contained(t, e, workAndWait+"exec sleep 1000", "security: {enabled: false}\n")
		p.killAtWork(func(int) {})
		out, errs, code := p.try("", "attach", "latest", "--json")
		t.Log(errs)
		checkResult(t, "--json", []byte(out))
		var r controller.Result
		p.readJSON("out/result.json", &r)
		if code != 137 || r.Status != controller.StatusCancelled || !r.Delivered || len(r.Commits) != 1 || r.Backend != e.Backend ||
			p.read("out/output/report.txt") != "report\n" {
			t.Errorf("exit code %d: %+v", code, r)
		}
		p.checkLog()
		p.checkEnded(controller.StatusCancelled)
	})
	t.Run("gc removes the container of a controller that is killed", func(t *testing.T) {
		p := contained(t, e, "echo waiting; sleep 1000", "")
		run := p.startAs("| waiting", p.runArgs())
		if out, errs, code := p.try("", append([]string{"gc"}, p.place...)...); code != 0 || out != "" || e.Containers(t) == "[]" {
			t.Errorf("gc beside a run: %d %q %s", code, out, errs)
		}
		if err := run.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = run.cmd.Wait()
		if out, errs, code := p.try("", append([]string{"gc"}, p.place...)...); code != 0 || !strings.Contains(out, "removed sandbox ") {
			t.Errorf("gc: %d %q %s", code, out, errs)
		}
		if left := e.Containers(t); left != "[]" {
			t.Errorf("left: %s", left)
		}
	})
}

// refusedByEngine checks that what an engine cannot give is refused with what to do.
func refusedByEngine(t *testing.T, e *testenv.Engine) {
	p := contained(t, e, "true", "")
	whole := p.read("harness.yaml")
	for _, tt := range []struct{ from, to, want string }{
		{"image: " + testenv.EngineImage, "image: localhost:1/none:1", "cannot be pulled: "},
		{"image: " + testenv.EngineImage, "", "write image: NAME in the harness"},
		{"container:", "container:\n  disk_mb: 1000", "container.disk_mb: the storage driver of the engine cannot limit"},
		{"container:", "container:\n  network: elsewhere", "container.network: '" + e.Backend + " network ls' lists"},
		{"container:", "container:\n  network: host", "is the network of somebody else"},
		{"container:", "container:\n  user: nobody-here", "container.user: write a UID"},
		{"source: /usr,", "source: /no/such/directory,", "the path must exist on the machine of the engine"},
		{"source: /usr,", "source: /var/run/docker.sock,", "whoever has it controls that machine"},
		{"target: /usr}", "target: /sandbox/x}", "it has files of the sandbox itself"},
	} {
		p.write("harness.yaml", strings.Replace(whole, tt.from, tt.to, 1), 0o644)
		if out, errs, code := p.try("", p.runArgs()...); code != controller.ExitSandbox || !strings.Contains(errs, tt.want) {
			t.Errorf("%s: exit code %d, want %q\n%s%s", tt.to, code, tt.want, out, errs)
		}
	}
	p.write("harness.yaml", whole, 0o644)
	p.place[3] = "unix://" + p.path("no.sock")
	if out, errs, code := p.try("", p.runArgs()...); code != controller.ExitSandbox || !strings.Contains(errs, "does not answer") ||
		!strings.Contains(errs, "hint: start it") || !strings.Contains(errs, "or name another with --connect or ") {
		t.Errorf("no engine: exit code %d\n%s%s", code, out, errs)
	}
	p.place[3] = "tcp://192.0.2.1:2375"
	if out, errs, code := p.try("", p.runArgs()...); code != controller.ExitConfiguration ||
		!strings.Contains(errs, "has no TLS: set DOCKER_CERT_PATH") {
		t.Errorf("no TLS: exit code %d\n%s%s", code, out, errs)
	}
	p.place[3] = e.Host
}

func TestContainersThatEndAreExplained(t *testing.T) {
	t.Parallel()
	testenv.Asked(t, "AGENTSH_ENGINES", "engines")
	for name, start := range map[string]func(t *testing.T) *testenv.Engine{
		"docker": func(t *testing.T) *testenv.Engine { t.Helper(); return testenv.Docker(t) },
		"podman": testenv.Podman, "rootless podman": testenv.RootlessPodman,
	} {
		t.Run(name, func(t *testing.T) { endsAreExplained(t, start(t), name) })
	}
}

func endsAreExplained(t *testing.T, e *testenv.Engine, engine string) {
	const agent = "cat a.txt; echo waiting; sleep 1000"
	name := func(t *testing.T) string {
		t.Helper()
		_, id, _ := strings.Cut(e.Containers(t), `"Id":"`)
		return id[:min(len(id), 64)]
	}
	for what, tt := range map[string]struct {
		end        func(t *testing.T)
		want, hint string
	}{
		"killed": {
			func(t *testing.T) { e.Ask(t, http.MethodPost, "/containers/"+name(t)+"/kill", nil) },
			"was stopped or killed, by somebody or by an engine that was started again (signal 9)", "start the run again",
		},
		"removed": {
			func(t *testing.T) { e.Ask(t, http.MethodDelete, "/containers/"+name(t)+"?force=1", nil) },
			"was stopped or killed, by somebody", "start the run again",
		},
	} {
		t.Run(what, func(t *testing.T) {
			p := contained(t, e, agent, "")
			run := p.startAs("| waiting", p.runArgs())
			tt.end(t)
			if code := run.wait(); code != controller.ExitSandbox || !strings.Contains(run.errs.String(), tt.want) ||
				!strings.Contains(run.errs.String(), tt.hint) {
				t.Errorf("exit code %d\n%s", code, run.errs.String())
			}
			if log := p.read("out/audit.jsonl"); !strings.Contains(log, `"cat"`) {
				t.Errorf("audit log: %s", log)
			}
		})
	}
	t.Run("memory", func(t *testing.T) {
		p := contained(t, e, "echo waiting; head -c 400000000 /dev/zero | tail; exit 3", "  memory_mb: 128\n")
		if old := strings.Contains(e.Ask(t, http.MethodGet, "/info", nil), `"CgroupVersion":"1"`); old && engine == "rootless podman" {
			if r, code := p.run(); code != controller.ExitSandbox || !strings.Contains(r.Error.Message, "this engine cannot limit that") {
				t.Errorf("exit code %d: %+v", code, r.Error)
			}
			return
		}
		if r, code := p.run(); code != controller.ExitAgentFailed || r.Error == nil { // the command alone was killed
			t.Errorf("exit code %d: %+v", code, r.Error)
		}
		// Many small processes fill the memory, and the kernel kills the largest one: the supervisor.
		p = contained(t, e, "for i in $(seq 1000); do sleep 1000 & done; wait", "  memory_mb: 24\nsecurity: {enabled: false}\n")
		if r, code := p.run(); code != controller.ExitSandbox || r.Error == nil || !strings.Contains(r.Error.Message, "memory was full") ||
			!strings.Contains(r.Error.Hint, "raise container.memory_mb") || r.Error.End != "memory" {
			t.Errorf("exit code %d: %+v", code, r.Error)
		}
	})
	t.Run("the engine is started again", func(t *testing.T) {
		p := contained(t, e, agent, "")
		run := p.startAs("| waiting", p.runArgs())
		e.Restart(t)
		if engine != "docker" { // its containers go on, and the run with them
			if out, errs, code := p.try("", "sandbox", "exec", "latest", "--", "echo", "alive"); code != 0 || out != "alive\n" {
				t.Errorf("after the start of the engine: %d %q %s", code, out, errs)
			}
			e.Ask(t, http.MethodPost, "/containers/"+name(t)+"/kill", nil)
		}
		if code := run.wait(); code != controller.ExitSandbox || !strings.Contains(run.errs.String(), "by an engine that was started again") {
			t.Errorf("exit code %d\n%s", code, run.errs.String())
		}
		waitEmpty(t, e)
	})
	t.Run("the engine does not come back", func(t *testing.T) {
		p := contained(t, e, agent, "")
		run := p.startAs("| waiting", p.runArgs("--lease", "10s"))
		e.Stop(t)
		if code := run.wait(); code != controller.ExitSandbox || !strings.Contains(run.errs.String(), "does not answer") {
			t.Errorf("exit code %d\n%s", code, run.errs.String())
		}
		e.Restart(t)
		waitEmpty(t, e)
		if out, errs, code := p.try("", append([]string{"gc"}, p.place...)...); code != 0 {
			t.Errorf("gc: %d %q %s", code, out, errs)
		}
	})
}
