package agenthost

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"agentsh/controller/sandbox/host"
	"agentsh/internal/layout"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/policy/syntax"
)

// found is the program of an agent on this machine.
type found struct {
	path  string   // as it is started
	runs  []string // programs that its start executes: itself, and the interpreter of a script
	trees []string // directories that it reads
	files []string // files that it reads besides
}

// errRelative is the error of a program that is named by a relative path.
var errRelative = errors.New("with harness: false the program is one of this machine: write its absolute path, or a name on PATH")

// find finds the program of the options.
func find(o Options) (found, error) {
	if len(o.Argv) == 0 || o.Argv[0] == "" {
		return found{}, errors.New("no program is named")
	}
	name := o.Argv[0]
	if strings.Contains(name, "/") && !filepath.IsAbs(name) {
		return found{}, fmt.Errorf("%s: %w", name, errRelative)
	}
	path, err := host.LookPath(name, []string{"PATH=" + o.Search})
	if err != nil {
		return found{}, fmt.Errorf("%s is not on this machine: %w", name, err)
	}
	f := found{path: path}
	if err := f.add(path, o.Search, true); err != nil {
		return f, err
	}
	if o.Runtime.Model().Any {
		for _, arg := range o.Argv[1:] { // a script of an interpreter
			if info, err := os.Stat(arg); filepath.IsAbs(arg) && err == nil && info.Mode().IsRegular() {
				f.tree(arg)
			}
		}
	}
	return f, nil
}

// add adds a program with what its start needs.
func (f *found) add(path, search string, scripts bool) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return fmt.Errorf("%s is no executable file", path)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	f.runs = append(f.runs, path)
	f.tree(path)
	if real != path {
		f.runs = append(f.runs, real)
		f.tree(real)
	}
	if !scripts {
		return nil
	}
	for _, name := range interpreter(real) {
		path, err := host.LookPath(name, []string{"PATH=" + search})
		if err != nil {
			return fmt.Errorf("%s: its interpreter %s: %w", real, name, err)
		}
		if err := f.add(path, search, false); err != nil {
			return err
		}
	}
	return nil
}

// interpreter are the programs that the first line of a script names.
func interpreter(script string) []string {
	f, err := os.Open(script)
	if err != nil {
		return nil
	}
	defer f.Close()
	line, _ := bufio.NewReader(io.LimitReader(f, 256)).ReadString('\n')
	rest, is := strings.CutPrefix(line, "#!")
	words := strings.Fields(rest)
	if !is || len(words) == 0 {
		return nil
	}
	if filepath.Base(words[0]) != "env" {
		return words[:1]
	}
	for _, w := range words[1:] {
		if !strings.HasPrefix(w, "-") && !strings.Contains(w, "=") {
			return []string{words[0], w}
		}
	}
	return words[:1]
}

// tree adds the directory that belongs to a program: that of its package, else that of the file. A file in
// a home directory itself is alone.
func (f *found) tree(file string) {
	dir := filepath.Dir(file)
	home, _ := os.UserHomeDir() // without one there is none to leave out
	if at := strings.Index(file, "/node_modules/"); at > 0 {
		dir = file[:at] + "/node_modules"
	}
	if filepath.Base(dir) == "bin" {
		if _, err := os.Stat(filepath.Join(filepath.Dir(dir), "pyvenv.cfg")); err == nil {
			dir = filepath.Dir(dir)
		}
	}
	if dir == "/" || dir == home || dir == "/tmp" || dir == "/var/tmp" {
		f.files = append(f.files, file)
		return
	}
	f.trees = append(f.trees, dir)
}

// below reports whether a part of the program is below a directory.
func (f *found) below(dir string) bool {
	return slices.ContainsFunc(slices.Concat(f.trees, f.files), func(name string) bool { return strings.HasPrefix(name, dir+"/") })
}

// rule is one rule of the policy.
type rule map[string]any

// policyName is the file name in refusals.
const policyName = "agentctl-agent.yaml"

// policy is the policy of the session. hosts are those that it reaches besides the tools.
func (s *Side) policy(ctx context.Context) (sources []wire.PolicySource, hosts []string, err error) {
	network, hosts, err := s.network(ctx)
	if err != nil {
		return nil, nil, err
	}
	data, err := json.MarshalIndent(map[string]any{
		"version": 1, "name": "agentctl-agent",
		"command_rules": s.commands(), "file_rules": s.fileRules(), "network_rules": network,
		"signal_rules": []rule{
			{"name": "own-processes", "signals": []string{"@all"}, "target": rule{"type": "self"}, "decision": "allow"},
			{"name": "started-processes", "signals": []string{"@all"}, "target": rule{"type": "descendants"}, "decision": "allow"},
		},
		"env_policy": rule{"allow": s.variables()},
	}, "", "  ")
	if err != nil {
		return nil, nil, err
	}
	p, err := syntax.Load(policy.Source{Name: policyName, Data: data}, syntax.Options{})
	if err != nil {
		return nil, nil, fmt.Errorf("policy of the agent's program: %w", err)
	}
	filter := p.EnvFilter(nil)
	for _, name := range s.ownVariables() {
		if why := filter.Refuses(name); why != "" {
			return nil, nil, fmt.Errorf("env_passthrough: %s does not reach the agent's program: %s", name, why)
		}
	}
	return []wire.PolicySource{{Name: policyName, Data: data}}, hosts, nil
}

// ownVariables are the names of the variables of the options.
func (s *Side) ownVariables() []string {
	names := slices.Collect(maps.Keys(s.o.Env))
	for _, c := range s.o.Credentials {
		names = append(names, c.Variable)
	}
	return names
}

// variables are patterns of all variables that the program may have.
func (s *Side) variables() []string {
	return append(s.ownVariables(), "PATH", "HOME", "USER", "SHELL", "LANG", "LC_*", "TERM", "TMPDIR", "TZ", "SHLVL", "AGENTSH_*",
		"FULLSEND_*", "TRACEPARENT", "CLAUDE_*", "MCP_*", "DISABLE_AUTOUPDATER")
}

// How hooks are started, by the shell that a program starts for that.
const (
	hookPattern  = `^hook --settings \S+( [a-z_]+)+$`
	shellPattern = `^-l?c '` + layout.Program + `' 'hook' '--settings' '[^']+'( '[a-z_]+')+ \|\| `
)

func (s *Side) commands() []rule {
	var rules []rule
	if s.o.Hooks {
		rules = append(rules,
			rule{"name": "hooks", "commands": []string{layout.Program}, "args_patterns": []string{hookPattern}, "decision": "allow"},
			rule{"name": "hook-shells", "commands": []string{"sh", "bash"}, "args_patterns": []string{shellPattern}, "decision": "allow"})
	}
	if s.o.Runtime.Model().Any {
		return append(rules, rule{"name": "all", "commands": []string{"*"}, "decision": "allow"})
	}
	return append(rules,
		rule{"name": "agent-program", "commands": s.program.runs, "decision": "allow"},
		rule{"name": "no-other-program", "commands": []string{"*"}, "decision": "deny",
			"message": "the agent's program on the host starts nothing: its tools run commands in the sandbox"})
}

var readOnly = []string{"read", "list", "stat", "execute"}

// fileRules show the program, what programs need of this machine, and directories of its own.
func (s *Side) fileRules() []rule {
	allow := func(name string, operations []string, paths ...string) rule {
		return rule{"name": name, "paths": paths, "operations": operations, "decision": "allow"}
	}
	own := []string{}
	for _, dir := range s.program.trees {
		own = append(own, dir, dir+"/**")
	}
	own = append(own, s.program.files...)
	scratch := []string{layout.Sandbox, layout.Sandbox + "/**", "/dev/shm", "/dev/shm/**"}
	if !s.program.below("/tmp") { // else a private one would hide it; TMPDIR is another directory then
		scratch = append(scratch, "/tmp", "/tmp/**")
	}
	return []rule{
		allow("agent-program", readOnly, own...),
		allow("own-files", []string{"*"}, scratch...),
		{"name": "machine-secrets", "paths": []string{"/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers",
			"/etc/sudoers.d/**", "/etc/ssh/**", "/etc/ssl/private/**", "/etc/pki/tls/private/**", "/etc/letsencrypt/**", "/etc/wireguard/**",
			"/etc/kubernetes/**", "/etc/krb5.keytab", "/etc/NetworkManager/system-connections/**",
			"/etc/agentsh/**", "/etc/claude-code/**", "/etc/codex/**", "/etc/gemini-cli/**"},
			"operations": []string{"*"}, "decision": "deny", "message": "this belongs to the machine"},
		allow("programs", readOnly, "/usr/**", "/bin/**", "/sbin/**", "/lib/**", "/lib64/**"),
		allow("machine", []string{"read", "list", "stat"}, "/", "/etc", "/etc/**", "/proc", "/proc/**", "/sys", "/sys/**", "/dev"),
		allow("devices", []string{"read", "write", "list", "stat"}, "/dev/**"),
	}
}

// network are the rules for the tools and the model.
func (s *Side) network(ctx context.Context) (rules []rule, hosts []string, err error) {
	_, port, err := net.SplitHostPort(s.listener.Addr().String())
	if err != nil {
		return nil, nil, err
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return nil, nil, err
	}
	rules = []rule{{"name": "tools", "cidrs": []string{"127.0.0.1/32"}, "ports": []int{number}, "decision": "allow"}}
	if hosts, err = s.hosts(); err != nil {
		return nil, nil, err
	}
	for i, h := range hosts {
		r, err := hostRule(ctx, fmt.Sprintf("model-%d", i+1), h)
		if err != nil {
			return nil, nil, err
		}
		rules = append(rules, r)
	}
	return rules, hosts, nil
}

// hosts are those of the model, and further ones of the options, each as host:port.
func (s *Side) hosts() ([]string, error) {
	m := s.o.Runtime.Model()
	var out []string
	for _, name := range passed(s.o.Env) {
		text := s.o.Env[name]
		if m.Any || text == "" || !IsGateway(name) {
			continue
		}
		h, err := hostOf(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		out = append(out, h)
	}
	for _, c := range s.o.Credentials {
		for _, e := range c.Endpoints {
			out = append(out, withPort(e))
		}
	}
	if len(out) == 0 {
		out = append(out, m.Hosts...)
	}
	for _, h := range s.o.Hosts {
		out = append(out, withPort(h))
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// IsGateway reports whether a variable has the address of an API of models: ANTHROPIC_BASE_URL, OPENAI_BASE_URL,
// ANTHROPIC_BEDROCK_BASE_URL and others.
func IsGateway(variable string) bool { return strings.HasSuffix(variable, "_BASE_URL") }

// hostOf is the host of a URL with its port.
func hostOf(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", errors.New("it is no address of an API, as https://api.example.com")
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port), nil
}

// withPort adds the port of HTTPS to a host without one.
func withPort(host string) string {
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), "443")
}

// hostRule allows one host. An address, and the names of this machine, may be private: they are named.
func hostRule(ctx context.Context, name, hostPort string) (rule, error) {
	host, port, err := net.SplitHostPort(hostPort)
	if err != nil {
		return nil, err
	}
	number, err := strconv.Atoi(port)
	if err != nil || number < 1 || number > 65535 {
		return nil, fmt.Errorf("%s: %q is no port", hostPort, port)
	}
	r := rule{"name": name, "ports": []int{number}, "decision": "allow"}
	if addr, err := netip.ParseAddr(host); err == nil {
		r["cidrs"] = []string{netip.PrefixFrom(addr, addr.BitLen()).String()}
		return r, nil
	}
	r["domains"] = []string{host}
	if host == "localhost" {
		r["cidrs"] = []string{"127.0.0.1/32", "::1/128"}
		return r, nil
	}
	if private := privateAddresses(ctx, host); len(private) > 0 {
		r["cidrs"] = private
	}
	return r, nil
}

// lookupWait bounds the resolution of a name.
const lookupWait = 10 * time.Second

// privateAddresses are the addresses of a host in private networks, which a rule must name. A
// host that is not known here has none.
func privateAddresses(ctx context.Context, host string) []string {
	if strings.HasPrefix(host, "*.") {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupWait)
	defer cancel()
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil
	}
	var out []string
	for _, addr := range found {
		if addr = addr.Unmap(); addr.IsPrivate() {
			out = append(out, netip.PrefixFrom(addr, addr.BitLen()).String())
		}
	}
	slices.Sort(out)
	return out
}
