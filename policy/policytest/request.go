package policytest

import (
	"net/netip"
	"path"
	"strings"

	"agentsh/internal/mistake"
	"agentsh/internal/strictyaml"
	"agentsh/policy"
)

// commandFields are the keys of a case for a command request.
type commandFields struct {
	argv, ancestors, same []string
	chain                 [][]string
	path, cwd, parent     string
	depth                 int
	interactive, more     bool
}

func (r *suiteReader) commandReaders(readers map[string]func(*strictyaml.Node), c *commandFields) {
	add := func(key string, read func(*strictyaml.Node)) {
		readers[key] = func(v *strictyaml.Node) {
			c.more = true
			read(v)
		}
	}
	add("path", func(v *strictyaml.Node) { c.path = r.checked(v, file) })
	add("cwd", func(v *strictyaml.Node) { c.cwd = r.checked(v, file) })
	add("parent", func(v *strictyaml.Node) { c.parent = r.checked(v, file) })
	add("ancestors", func(v *strictyaml.Node) { c.ancestors = r.texts(v) })
	add("same", func(v *strictyaml.Node) { c.same = r.texts(v) })
	add("depth", func(v *strictyaml.Node) { c.depth = r.number(v) })
	add("interactive", func(v *strictyaml.Node) { c.interactive = r.flag(v) })
	add("chain", func(v *strictyaml.Node) {
		for _, link := range v.Content {
			c.chain = append(c.chain, []string{r.text(link)})
		}
	})
}

func (r *suiteReader) command(n *strictyaml.Node, f *commandFields) *policy.CommandRequest {
	if len(f.argv) == 0 {
		r.fail(n, "command is empty")
		return &policy.CommandRequest{}
	}
	request := Command(f.argv)
	if f.path != "" {
		request.Path = f.path
	}
	if f.cwd == "" {
		f.cwd = r.suite.Vars["WORKSPACE"]
	}
	request.Cwd, request.Depth, request.Interactive, request.Same = f.cwd, f.depth, f.interactive, f.same
	request.Parent, request.Ancestors = f.parent, f.ancestors
	if f.depth > 0 && f.parent == "" {
		request.Parent = "/usr/bin/bash"
	}
	if f.parent != "" && f.depth == 0 {
		request.Depth = 1
	}
	if f.ancestors == nil && request.Parent != "" {
		request.Ancestors = []string{request.Parent}
	}
	for _, link := range f.chain {
		request.Chain = append(request.Chain, Command(link).Program)
	}
	return request
}

// Command returns the request for an operator's command. A name without a slash
// gets the directory /usr/bin, because no files are read here.
func Command(argv []string) *policy.CommandRequest {
	file := argv[0]
	if !strings.Contains(file, "/") {
		file = "/usr/bin/" + file
	}
	return &policy.CommandRequest{
		Program: policy.Program{Called: argv[0], Path: path.Clean(file)},
		Argv:    argv,
	}
}

func (r *suiteReader) fileRequest(n *strictyaml.Node) policy.Request {
	f, before := &policy.FileRequest{}, len(r.problems)
	r.Fields(n, "file", map[string]func(*strictyaml.Node){
		"path":      func(v *strictyaml.Node) { f.Path = r.checked(v, file) },
		"operation": func(v *strictyaml.Node) { f.Op = r.operation(v) },
	})
	if len(r.problems) > before {
		return f
	}
	if !path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path {
		r.fail(n, "path %q is not a clean absolute path", f.Path)
	}
	if f.Op == 0 {
		r.fail(n, "file has no operation")
	}
	return f
}

func (r *suiteReader) networkRequest(n *strictyaml.Node) policy.Request {
	q := &policy.NetworkRequest{Protocol: "tcp"}
	r.Fields(n, "network", map[string]func(*strictyaml.Node){
		"domain":   func(v *strictyaml.Node) { q.Domain = r.checked(v, mistake.Host) },
		"address":  func(v *strictyaml.Node) { q.Addr = r.address(v) },
		"port":     func(v *strictyaml.Node) { q.Port = r.number(v) },
		"protocol": func(v *strictyaml.Node) { q.Protocol = r.text(v) },
		"method":   func(v *strictyaml.Node) { q.Method = r.checked(v, mistake.Method) },
		"path":     func(v *strictyaml.Node) { q.Path = r.text(v) },
		"binary":   func(v *strictyaml.Node) { q.Binary = r.checked(v, file) },
	})
	if q.Host() == "" {
		r.fail(n, "network has neither domain nor address")
	}
	return q
}

// address parses an address in any form of [policy.ParseAddress].
func (r *suiteReader) address(n *strictyaml.Node) netip.Addr {
	text := r.text(n)
	a, ok := policy.ParseAddress(text)
	if f := mistake.Network(text); !ok && f.Found() {
		r.mistaken(n, f.One())
		return a
	}
	if !ok && text != "" {
		r.fail(n, "address %q is not an IP address", text)
	}
	return a
}

func (r *suiteReader) unixRequest(n *strictyaml.Node) policy.Request {
	q := &policy.UnixSocketRequest{Op: "connect"}
	r.Fields(n, "unix_socket", map[string]func(*strictyaml.Node){
		"path":      func(v *strictyaml.Node) { q.Path = r.checked(v, socket) },
		"operation": func(v *strictyaml.Node) { q.Op = r.socketOp(v) },
	})
	if q.Path == "" {
		r.fail(n, "unix_socket has no path")
	}
	return q
}

func (r *suiteReader) signalRequest(n *strictyaml.Node) policy.Request {
	q := &policy.SignalRequest{}
	found := false
	r.Fields(n, "signal", map[string]func(*strictyaml.Node){
		"signal": func(v *strictyaml.Node) {
			if q.Signal, found = policy.ParseSignal(r.raw(v)); !found && r.mistaken(v, mistake.Signal(v.Value)) {
				return
			}
			if !found {
				r.fail(v, "unknown signal %q", v.Value)
			}
		},
		"target":    func(v *strictyaml.Node) { q.Target = r.signalTarget(v) },
		"pid":       func(v *strictyaml.Node) { q.PID = r.number(v) },
		"name":      func(v *strictyaml.Node) { q.Name = r.text(v) },
		"same_user": func(v *strictyaml.Node) { q.SameUser = r.flag(v) },
	})
	if q.Target == "" {
		r.fail(n, "signal has no target")
	}
	return q
}

// checked reads a text of which mistakes are known.
func (r *suiteReader) checked(n *strictyaml.Node, known func(string) mistake.Finding) string {
	text := r.text(n)
	r.mistaken(n, known(text))
	return text
}

// A request has the path of one file, where a policy has a glob.
func file(text string) mistake.Finding   { return mistake.Path(text).File(text) }
func socket(text string) mistake.Finding { return mistake.Socket(text).File(text) }

// mistaken reports a known mistake, if there is one.
func (r *suiteReader) mistaken(n *strictyaml.Node, f mistake.Finding) bool {
	if f.Found() {
		r.Fail(n, f.Hint, "%s", f.Message)
	}
	return f.Found()
}

func (r *suiteReader) socketOp(n *strictyaml.Node) string {
	if i, ok := r.Word(n, "operation", policy.SocketOps); ok {
		return policy.SocketOps[i]
	}
	return ""
}

// argv reads a command as a list of words.
func (r *suiteReader) argv(n *strictyaml.Node) []string {
	if words := strings.Fields(n.Value); n.Kind == strictyaml.Scalar && len(words) > 0 {
		r.Fail(n, "write "+wordList(words), "a command is a list of words")
		return words
	}
	argv := r.texts(n)
	if len(argv) > 0 && strings.ContainsAny(argv[0], " \t") {
		if f := mistake.Program(argv[0], false); f.Found() {
			r.Fail(n.Content[0], "write "+wordList(append(strings.Fields(argv[0]), argv[1:]...)), "%s", f.Message)
		}
	}
	return argv
}

func wordList(words []string) string { return "[" + strings.Join(words, ", ") + "]" }

// signalTarget reads what the target of a signal is to its sender.
func (r *suiteReader) signalTarget(n *strictyaml.Node) string {
	words := policy.SignalTargets()
	if i, ok := r.Word(n, "target", words); ok {
		return words[i]
	}
	return ""
}
