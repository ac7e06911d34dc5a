package openshelldouble

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// Program is a double of OpenShell's program at version 0.0.x, for a gateway of that version: the test's own program, started as
// openshell. Its sandboxes are directories and processes of this machine. It takes the options that agentctl gives and those alone, and
// prints what the sources of v0.0.83 print (crates/openshell-cli: run.rs, ssh.rs).
type Program struct {
	t   testing.TB
	dir string
	// Environ is what a process needs that starts it, as NAME=value.
	Environ []string
}

// envDir has the directory of the double.
const envDir = "OPENSHELL_DOUBLE_DIR"

// gatewayName is the name under which the program has the gateway.
const gatewayName = "double"

// Program makes the gateway one of version 0.0.x, and its program. Tests that use it call [Main] first.
func (d *Double) Program(version string) *Program {
	cert, key := d.Mutual()
	p := &Program{t: d.t, dir: filepath.Join(d.dir, "program")}
	registered := filepath.Join(p.dir, "config/openshell/gateways", gatewayName)
	for _, dir := range []string{filepath.Join(registered, "mtls"), filepath.Join(p.dir, "bin"), filepath.Join(p.dir, "sandboxes")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			d.t.Fatal(err)
		}
	}
	for from, to := range map[string]string{d.CA(): "ca.crt", cert: "tls.crt", key: "tls.key"} {
		data, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(registered, "mtls", to), data, 0o600)
		}
		if err != nil {
			d.t.Fatal(err)
		}
	}
	meta := fmt.Sprintf(`{"name": %q, "gateway_endpoint": %q, "auth_mode": "mtls"}`, gatewayName, d.Address())
	self, err := os.Executable()
	if err != nil {
		d.t.Fatal(err)
	}
	if err := errors.Join(
		os.WriteFile(filepath.Join(registered, "metadata.json"), []byte(meta), 0o600),
		os.WriteFile(filepath.Join(p.dir, "config/openshell/active_gateway"), []byte(gatewayName), 0o600),
		os.Symlink(self, filepath.Join(p.dir, "bin/openshell")),
	); err != nil {
		d.t.Fatal(err)
	}
	p.Environ = []string{
		envDir + "=" + p.dir, "XDG_CONFIG_HOME=" + filepath.Join(p.dir, "config"),
		"PATH=" + filepath.Join(p.dir, "bin") + ":" + os.Getenv("PATH"),
	}
	d.Version(version)
	p.Set("gateway", version)
	p.Set("version", version)
	d.t.Cleanup(func() {
		for _, name := range p.Names() {
			p.Lose(name)
		}
	})
	return p
}

// Set sets what the program says or does: version (its own), gateway (that of the gateway, empty: it is away), away (for
// how many streams it is away), fails (what a command prints before it fails, with the command as in "create: TEXT").
func (p *Program) Set(name, value string) {
	if err := os.WriteFile(filepath.Join(p.dir, name), []byte(value), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// Remove removes the program from this machine.
func (p *Program) Remove() {
	if err := os.Remove(filepath.Join(p.dir, "bin/openshell")); err != nil {
		p.t.Fatal(err)
	}
}

// Calls are the command lines so far, each as its words joined by blanks.
func (p *Program) Calls() []string {
	data, err := os.ReadFile(filepath.Join(p.dir, "calls"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		p.t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
}

// Names are the names of the sandboxes.
func (p *Program) Names() []string { return programState{dir: p.dir}.names() }

// Policy is the policy of a sandbox.
func (p *Program) Policy(name string) string {
	data, err := os.ReadFile(filepath.Join(p.dir, "sandboxes", name, "policy"))
	if err != nil {
		p.t.Fatal(err)
	}
	return string(data)
}

// Home is the home directory of a sandbox.
func (p *Program) Home(name string) string { return filepath.Join(p.dir, "sandboxes", name, "home") }

// Lose deletes a sandbox as somebody else would.
func (p *Program) Lose(name string) { programState{dir: p.dir}.remove(name) }

// Fail has a sandbox go to Error.
func (p *Program) Fail(name string) {
	s := programState{dir: p.dir}
	r, err := s.load(name)
	if err == nil {
		r.Phase = "Error"
		err = s.store(r)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	s.kill(name)
}

// Main is the program openshell, or what confines a command, if this process was started as that. Otherwise it does nothing.
func Main() {
	switch filepath.Base(os.Args[0]) {
	case confineName:
		fmt.Fprintln(os.Stderr, "confine:", confine(os.Args[1:]))
		os.Exit(126)
	case "openshell":
	default:
		return
	}
	s := programState{dir: os.Getenv(envDir), out: os.Stdout, errs: os.Stderr}
	os.Exit(s.main(os.Args[1:]))
}

// programState is the state of the double, which all its processes share.
type programState struct {
	dir       string
	out, errs io.Writer
}

// listed is a sandbox as a list shows it.
type listed struct {
	ID      string            `json:"id"`
	Name    string            `json:"name"`
	Labels  map[string]string `json:"labels"`
	Version int               `json:"resource_version"`
	Created string            `json:"created_at"`
	Phase   string            `json:"phase"`
	Policy  int               `json:"current_policy_version"`
}

func (s programState) path(parts ...string) string {
	return filepath.Join(append([]string{s.dir}, parts...)...)
}

func (s programState) setting(name string) string {
	data, _ := os.ReadFile(s.path(name)) // empty: not set
	return string(data)
}

func (s programState) names() []string {
	entries, _ := os.ReadDir(s.path("sandboxes")) // without one there are none
	var out []string
	for _, e := range entries {
		if _, err := s.load(e.Name()); err == nil {
			out = append(out, e.Name())
		}
	}
	return out
}

func (s programState) load(name string) (r listed, err error) {
	data, err := os.ReadFile(s.path("sandboxes", name, "record.json"))
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	return r, err
}

func (s programState) store(r listed) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	part := s.path("sandboxes", r.Name, "record.part")
	if err := os.WriteFile(part, data, 0o600); err != nil {
		return err
	}
	return os.Rename(part, s.path("sandboxes", r.Name, "record.json"))
}

// away is for how many streams the gateway is away.
func (s programState) away() int {
	n, _ := strconv.Atoi(s.setting("away")) // not set: for none
	return n
}

// kill ends the processes of a sandbox.
func (s programState) kill(name string) {
	entries, _ := os.ReadDir(s.path("sandboxes", name, "pids")) // without one nothing was started
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			_ = syscall.Kill(-pid, syscall.SIGKILL) // it may have ended
		}
	}
}

// remove deletes a sandbox. Its files stay until the test ends: what runs in it may still write.
func (s programState) remove(name string) bool {
	err := os.Remove(s.path("sandboxes", name, "record.json"))
	s.kill(name)
	return err == nil
}

// fail prints an error as the program does, and returns its status.
func (s programState) fail(format string, args ...any) int {
	fmt.Fprintf(s.errs, "Error: \x1b[31m  × \x1b[0m%s\n", strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "\n  │ "))
	return 1
}

// usage is an error of the command line.
func (s programState) usage(format string, args ...any) int {
	fmt.Fprintf(s.errs, "error: "+format+"\n\nFor more information, try '--help'.\n", args...)
	return 2
}

// main is the program.
func (s programState) main(args []string) int {
	calls, err := os.OpenFile(s.path("calls"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return s.fail("%v", err)
	}
	_, _ = fmt.Fprintln(calls, strings.Join(args, " ")) // the test misses it
	_ = calls.Close()
	if slices.Equal(args, []string{"--version"}) {
		fmt.Fprintf(s.out, "openshell %s\n", s.setting("version"))
		return 0
	}
	if len(args) > 1 && args[0] == "ssh-proxy" {
		return s.proxy(args[1:])
	}
	for _, v := range os.Environ() {
		if strings.HasPrefix(v, "OPENSHELL_GATEWAY=") || strings.Contains(v, Token) || strings.Contains(v, "SECRET") {
			return s.usage("this variable was not to be passed: %s", v)
		}
	}
	if len(args) < 3 || args[0] != "--gateway" || args[1] != gatewayName {
		return s.usage("unexpected arguments: %q", args)
	}
	args = args[2:]
	if slices.Equal(args, []string{"status"}) {
		return s.status()
	}
	if len(args) < 2 || args[0] != "sandbox" {
		return s.usage("unrecognized subcommand %q", args[0])
	}
	if s.setting("gateway") == "" || s.away() > 0 {
		return s.fail("failed to connect to gateway '%s' at https://127.0.0.1. Start the gateway\nservice", gatewayName)
	}
	if what, says, is := strings.Cut(s.setting("fails"), ": "); is && what == args[1] {
		return s.fail("%s", says)
	}
	run := map[string]func([]string) int{"create": s.create, "list": s.list, "delete": s.delete, "ssh-config": s.sshConfig}[args[1]]
	if run == nil {
		return s.usage("unrecognized subcommand %q", args[1])
	}
	return run(args[2:])
}

// status ends with status 0 whatever it finds.
func (s programState) status() int {
	fmt.Fprint(s.out, "\x1b[1m\x1b[36mServer Status\x1b[39m\x1b[0m\n\n")
	fmt.Fprintf(s.out, "  \x1b[2mGateway:\x1b[0m %s\n  \x1b[2mServer:\x1b[0m https://127.0.0.1\n", gatewayName)
	if v := s.setting("gateway"); v != "" {
		fmt.Fprintf(s.out, "  \x1b[2mStatus:\x1b[0m \x1b[32mConnected\x1b[39m\n  \x1b[2mVersion:\x1b[0m %s\n", v)
	} else {
		fmt.Fprint(s.out, "  \x1b[2mStatus:\x1b[0m \x1b[31mDisconnected\x1b[39m\n  \x1b[2mError:\x1b[0m transport error\n")
	}
	return 0
}

// options are options with a value.
func options(args, known []string) (values map[string][]string, rest []string, err error) {
	values = map[string][]string{}
	for len(args) > 0 && strings.HasPrefix(args[0], "--") && args[0] != "--" {
		if !slices.Contains(known, args[0]) {
			return nil, nil, fmt.Errorf("unexpected argument '%s' found", args[0])
		}
		if len(args) < 2 {
			return nil, nil, fmt.Errorf("a value is required for '%s'", args[0])
		}
		values[args[0]] = append(values[args[0]], args[1])
		args = args[2:]
	}
	return values, args, nil
}

func (s programState) list(args []string) int {
	o, rest, err := options(args, []string{"--selector", "--limit", "--offset", "--output"})
	if err != nil || len(rest) > 0 || !slices.Equal(o["--output"], []string{"json"}) {
		return s.usage("%v %q", err, rest)
	}
	limit, offset := 100, 0
	if o["--limit"] != nil {
		limit, err = strconv.Atoi(o["--limit"][0])
	}
	if o["--offset"] != nil && err == nil {
		offset, err = strconv.Atoi(o["--offset"][0])
	}
	if err != nil {
		return s.usage("%v", err)
	}
	out := []listed{}
	for _, name := range s.names() {
		r, err := s.load(name)
		if err != nil {
			continue // it was deleted meanwhile
		}
		if o["--selector"] != nil {
			key, value, _ := strings.Cut(o["--selector"][0], "=")
			if r.Labels[key] != value {
				continue
			}
		}
		out = append(out, r)
	}
	out = out[min(offset, len(out)):]
	data, err := json.MarshalIndent(out[:min(limit, len(out))], "", "  ")
	if err != nil {
		return s.fail("%v", err)
	}
	fmt.Fprintln(s.out, string(data))
	return 0
}

// create is 'sandbox create'. Options without a value come before others.
func (s programState) create(args []string) int {
	flags := []string{"--no-tty", "--no-auto-providers"}
	for _, f := range flags {
		i := slices.Index(args, f)
		if i < 0 || i > slices.Index(args, "--") {
			return s.usage("the double takes no sandbox without %s", f)
		}
		args = slices.Delete(slices.Clone(args), i, i+1)
	}
	o, rest, err := options(args, []string{"--name", "--from", "--policy", "--label"})
	if err != nil || len(o["--name"]) != 1 || len(o["--from"]) != 1 || len(o["--policy"]) != 1 || !slices.Equal(rest, []string{"--", "true"}) {
		return s.usage("%v %q", err, rest)
	}
	r := listed{ID: "id", Name: o["--name"][0], Labels: map[string]string{}, Created: "2026-11-27 00:00:00", Phase: "Ready", Policy: 1}
	for _, l := range o["--label"] {
		key, value, is := strings.Cut(l, "=")
		if !is {
			return s.fail("invalid --label %s", l)
		}
		r.Labels[key] = value
	}
	policy, err := os.ReadFile(o["--policy"][0])
	if err != nil || !strings.Contains(string(policy), "\nfilesystem_policy:") {
		return s.fail("failed to parse sandbox policy YAML: %v", err)
	}
	if _, err := s.load(r.Name); err == nil {
		return s.fail("sandbox '%s' already exists\n\nhint: delete it first with: openshell sandbox delete <name>\n      or use another", r.Name)
	}
	if from := o["--from"][0]; from != Image {
		return s.fail("sandbox entered error phase while provisioning: ImagePullFailed: failed\nto pull %s", from)
	}
	if err := errors.Join(
		os.MkdirAll(s.path("sandboxes", r.Name, "pids"), 0o700), os.MkdirAll(s.path("sandboxes", r.Name, "proxies"), 0o700),
		os.MkdirAll(s.path("sandboxes", r.Name, "home"), 0o700),
		os.WriteFile(s.path("sandboxes", r.Name, "policy"), policy, 0o600), s.store(r),
	); err != nil {
		return s.fail("%v", err)
	}
	fmt.Fprintf(s.out, "\x1b[36mCreated sandbox:\x1b[39m %s\n", r.Name)
	return 0
}

func (s programState) delete(args []string) int {
	if len(args) != 1 || strings.HasPrefix(args[0], "-") {
		return s.usage("%q", args)
	}
	if s.remove(args[0]) {
		fmt.Fprintf(s.out, "\x1b[1m\x1b[32m✓\x1b[39m\x1b[0m Deleted sandbox %s\n", args[0])
	} else {
		fmt.Fprintf(s.out, "\x1b[33m!\x1b[39m Sandbox %s not found\n", args[0])
	}
	return 0
}

func (s programState) sshConfig(args []string) int {
	if len(args) != 1 || strings.HasPrefix(args[0], "-") {
		return s.usage("%q", args)
	}
	self := s.path("bin/openshell")
	fmt.Fprintf(s.out, "Host openshell-%[1]s\n    User sandbox\n    StrictHostKeyChecking no\n    UserKnownHostsFile /dev/null\n"+
		"    GlobalKnownHostsFile /dev/null\n    LogLevel ERROR\n    ServerAliveInterval 15\n    ServerAliveCountMax 3\n"+
		"    ProxyCommand %[2]s ssh-proxy --gateway-name %[3]s --name %[1]s\n", args[0], self, gatewayName)
	return 0
}

// CutStreams ends the streams of a sandbox, as a gateway does that goes away. What runs in the sandbox goes on.
func (p *Program) CutStreams(name string) {
	entries, err := os.ReadDir(filepath.Join(p.dir, "sandboxes", name, "proxies"))
	if err != nil {
		p.t.Fatal(err)
	}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
	}
}
