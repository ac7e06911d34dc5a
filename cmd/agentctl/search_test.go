package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"agentsh/internal/testenv"
)

// newProviderFixture creates a fixture whose agent may use a credential at a
// simulated provider.
func newProviderFixture(t *testing.T, agent, more string) (*fixture, *standIn) {
	t.Helper()
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE, testenv.Program("git"), testenv.Program("curl"))
	s := newStandIn(t)
	p := newFixture(t, strings.ReplaceAll(agent, "PROVIDER", "https://api.provider.test:"+s.port+"/"), "providers: [github]\n"+more)
	p.write(
		"providers/github.yaml",
		"name: github\ntype: rest\ncredentials: {TOKEN: \"${HOST_TOKEN}\"}\nendpoints: ['api.provider.test:"+s.port+"']\nheader: Authorization\n",
		0o644,
	)
	p.write("policy.yaml", p.read("policy.yaml")+`
network_rules:
  - {name: provider, domains: [api.provider.test], cidrs: [127.0.0.1/32], decision: allow}
`, 0o644)
	p.write("ca.pem", string(s.ca), 0o644)
	p.write("config.yaml", "network: {resolvers: ['"+s.dns+"'], ca_files: ['"+p.path("ca.pem")+"']}\n", 0o644)
	return p, s
}

// The agent uses its credential and is then searched while it runs. The search
// covers the memory, environment and arguments of every process of the session
// and of its file server. It also covers every file that the sandbox has or
// shows.
func TestTheSandboxNeverHoldsACredential(t *testing.T) {
	t.Parallel()
	const work = `curl -sS -H "Authorization: Bearer $TOKEN" PROVIDER >answer.txt 2>&1
exec 3<answer.txt
python3 -c 'import os, time; kept = open("answer.txt").read() + os.environ["TOKEN"]; print("agent at work", flush=True); time.sleep(1000)' &
wait`
	t.Run("as it is", func(t *testing.T) {
		p, s := newProviderFixture(t, work, "")
		if found := p.search(newSecret()); len(found) > 0 {
			t.Errorf("the credential is in %s", found)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.seen) != 1 || !strings.HasPrefix(s.seen[0], "Bearer real-value-") {
			t.Errorf("the provider saw %q", s.seen)
		}
	})
	t.Run("planted", func(t *testing.T) {
		p, _ := newProviderFixture(t, `export HEX=$(printf %s "$PLANTED" | od -An -tx1 | tr -d ' \n')
unset PLANTED
`+work, "env: {sandbox: {PLANTED: \"${HOST_COPY}\"}}")
		found := strings.Join(p.search(newSecret()), "\n")
		for _, want := range []string{"/mem", "/environ", "generated.env"} {
			if !strings.Contains(found, want) {
				t.Errorf("the search does not find it in %s:\n%s", want, found)
			}
		}
	})
}

// search runs the agent with a credential, searches for it while the agent
// waits, and then ends the agent. It returns the places where it found the
// credential.
func (p *fixture) search(value secret) (found []string) {
	p.t.Helper()
	cmd := p.command(p.runArgs("--agentsh-config", "config.yaml")...)
	// A reference to a provider's own variable gives a placeholder.
	cmd.Env = append(cmd.Env, "HOST_TOKEN="+string(value), "HOST_COPY="+string(value))
	var errs bytes.Buffer
	cmd.Stderr = &errs
	searched := 0
	out := &watcher{want: []byte("| agent at work"), found: func() {
		supervisor := p.supervisor()
		first := sessionInit(supervisor)
		for _, pid := range append(descendants(supervisor), first) {
			searched++
			found = append(found, p.searchProcess(pid, value)...)
		}
		for _, dir := range []string{p.dir, fmt.Sprintf("/proc/%d/root/sandbox", first), fmt.Sprintf("/proc/%d/root/tmp", first),
			fmt.Sprintf("/proc/%d/root/dev/shm", first), fmt.Sprintf("/proc/%d/root/run", first)} {
			found = append(found, p.searchFiles(dir, value)...)
		}
		_ = cmd.Process.Signal(syscall.SIGINT)
	}}
	cmd.Stdout = out
	_ = cmd.Run()
	if !out.done || searched < 4 {
		p.t.Errorf("%d processes were searched\n%s%s", searched, out.all.String(), errs.String())
	}
	return found
}

// descendants are all processes below a process, without the process itself.
func descendants(pid int) []int {
	var all []int
	for _, child := range childrenOf(pid) {
		all = append(append(all, child), descendants(child)...)
	}
	return all
}

// searchProcess searches for a value in the data of a process.
func (p *fixture) searchProcess(pid int, value secret) (found []string) {
	for _, name := range []string{"environ", "cmdline"} {
		file := fmt.Sprintf("/proc/%d/%s", pid, name)
		data, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ESRCH) {
			p.t.Error(err)
		}
		if value.in(data) {
			found = append(found, file)
		}
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			p.t.Error(err)
		}
		return found
	}
	defer mem.Close()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		p.t.Error(err)
	}
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		var mode string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); err != nil || mode[0] != 'r' || strings.HasPrefix(line, "f") {
			continue // not readable, or the kernel's vsyscall page
		}
		if value.inReader(&readable{mem, from, to}) {
			found = append(found, fmt.Sprintf("/proc/%d/mem: %s", pid, strings.TrimSpace(line)))
		}
	}
	return found
}

// readable reads a mapping. A page that cannot be read, such as one beyond the
// end of a file, is skipped.
type readable struct {
	mem      *os.File
	from, to int64
}

func (r *readable) Read(b []byte) (int, error) {
	const page = 4096
	for r.from < r.to {
		n, _ := r.mem.ReadAt(b[:min(int64(len(b)), r.to-r.from)], r.from)
		if n > 0 {
			r.from += int64(n)
			return n, nil
		}
		r.from += page - r.from%page
	}
	return 0, io.EOF
}

// inReader is like in, for data that does not fit into memory. An error ends
// the search.
func (s secret) inReader(r io.Reader) bool {
	buf := make([]byte, 0, 2<<20)
	for {
		n, err := io.ReadFull(r, buf[len(buf):min(len(buf)+1<<20, cap(buf))])
		if buf = buf[:len(buf)+n]; s.in(buf) {
			return true
		}
		if err != nil {
			return false
		}
		const overlap = 1024 // longer than any encoding of a secret
		buf = append(buf[:0], buf[max(len(buf)-overlap, 0):]...)
	}
}

// searchFiles searches for a value in the names and contents of a tree.
func (p *fixture) searchFiles(dir string, value secret) (found []string) {
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			return nil // removed meanwhile, or denied by the policy
		}
		if err != nil {
			return err
		}
		if value.in([]byte(name)) {
			found = append(found, name)
		}
		if !d.Type().IsRegular() {
			return nil
		}
		f, err := os.Open(name)
		if err != nil {
			return nil
		}
		defer f.Close()
		if value.inReader(f) {
			found = append(found, name)
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		p.t.Error(err)
	}
	return found
}
