package policytest

import (
	"net/netip"
	"path"
	"strings"

	"gopkg.in/yaml.v3"

	"agentsh/policy"
)

// commandFields are the keys of a case that describe a command.
type commandFields struct {
	argv, ancestors, same []string
	chain                 [][]string
	path, cwd, parent     string
	depth                 int
	interactive, more     bool
}

func (r *suiteReader) commandReaders(readers map[string]func(*yaml.Node), c *commandFields) {
	add := func(key string, read func(*yaml.Node)) {
		readers[key] = func(v *yaml.Node) {
			c.more = true
			read(v)
		}
	}
	add("path", func(v *yaml.Node) { c.path = r.text(v) })
	add("cwd", func(v *yaml.Node) { c.cwd = r.text(v) })
	add("parent", func(v *yaml.Node) { c.parent = r.text(v) })
	add("ancestors", func(v *yaml.Node) { c.ancestors = r.texts(v) })
	add("same", func(v *yaml.Node) { c.same = r.texts(v) })
	add("depth", func(v *yaml.Node) { c.depth = r.number(v) })
	add("interactive", func(v *yaml.Node) { c.interactive = r.flag(v) })
	add("chain", func(v *yaml.Node) {
		for _, link := range v.Content {
			c.chain = append(c.chain, []string{r.text(link)})
		}
	})
}

func (r *suiteReader) command(n *yaml.Node, f *commandFields) *policy.CommandRequest {
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

// Command is the request of an operator's command. A name without a slash is
// taken to be in /usr/bin, as no file is looked at here.
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

func (r *suiteReader) fileRequest(n *yaml.Node) policy.Request {
	f := &policy.FileRequest{}
	r.fields(n, "file", map[string]func(*yaml.Node){
		"path":      func(v *yaml.Node) { f.Path = r.text(v) },
		"operation": func(v *yaml.Node) { f.Op = r.operation(v) },
	})
	if !path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path {
		r.fail(n, "path %q is not a clean absolute path", f.Path)
	}
	if f.Op == 0 {
		r.fail(n, "file has no operation")
	}
	return f
}

func (r *suiteReader) networkRequest(n *yaml.Node) policy.Request {
	q := &policy.NetworkRequest{Protocol: "tcp"}
	r.fields(n, "network", map[string]func(*yaml.Node){
		"domain":   func(v *yaml.Node) { q.Domain = r.text(v) },
		"address":  func(v *yaml.Node) { q.Addr = r.address(v) },
		"port":     func(v *yaml.Node) { q.Port = r.number(v) },
		"protocol": func(v *yaml.Node) { q.Protocol = r.text(v) },
		"method":   func(v *yaml.Node) { q.Method = r.text(v) },
		"path":     func(v *yaml.Node) { q.Path = r.text(v) },
		"binary":   func(v *yaml.Node) { q.Binary = r.text(v) },
	})
	if q.Host() == "" {
		r.fail(n, "network has neither domain nor address")
	}
	return q
}

// address reads an address in any spelling of [policy.ParseAddress].
func (r *suiteReader) address(n *yaml.Node) netip.Addr {
	text := r.text(n)
	a, ok := policy.ParseAddress(text)
	if !ok && text != "" {
		r.fail(n, "address %q is not an IP address", text)
	}
	return a
}

func (r *suiteReader) unixRequest(n *yaml.Node) policy.Request {
	q := &policy.UnixSocketRequest{Op: "connect"}
	r.fields(n, "unix_socket", map[string]func(*yaml.Node){
		"path":      func(v *yaml.Node) { q.Path = r.text(v) },
		"operation": func(v *yaml.Node) { q.Op = r.text(v) },
	})
	if q.Path == "" {
		r.fail(n, "unix_socket has no path")
	}
	return q
}

func (r *suiteReader) signalRequest(n *yaml.Node) policy.Request {
	q := &policy.SignalRequest{}
	found := false
	r.fields(n, "signal", map[string]func(*yaml.Node){
		"signal": func(v *yaml.Node) {
			if q.Signal, found = policy.ParseSignal(r.raw(v)); !found {
				r.fail(v, "unknown signal %q", v.Value)
			}
		},
		"target":    func(v *yaml.Node) { q.Target = r.text(v) },
		"pid":       func(v *yaml.Node) { q.PID = r.number(v) },
		"name":      func(v *yaml.Node) { q.Name = r.text(v) },
		"same_user": func(v *yaml.Node) { q.SameUser = r.flag(v) },
	})
	if q.Target == "" {
		r.fail(n, "signal has no target")
	}
	return q
}
