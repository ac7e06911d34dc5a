package policycmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentsh/discovery"
	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/gitguard"
	"agentsh/internal/layout"
	"agentsh/internal/mistake"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/policy/policytest"
	"agentsh/supervisor/host"
)

// question is the request that explain evaluates.
type question struct {
	at          variables
	policy      string
	file        string
	op          string
	net         string
	protocol    string
	method      string
	path        string
	socket      string
	signal      string
	target      string
	cwd         string
	depth       int
	interactive bool
	parent      string
	here        bool
	json        bool
}

func newExplainCommand() *cobra.Command {
	var q question
	cmd := &cobra.Command{
		Use:   "explain [-p FILE] {-- COMMAND [ARG...] | --file PATH | --net HOST:PORT | --socket PATH | --signal SIGNAL}",
		Short: "Say what a policy decides about one request, and why",
		Long: "Say what a policy decides about one request, and why. Programs are looked up as sessions do it,\n" +
			"in the PATH of sessions. Of a program that is not found only the name is evaluated, and the\n" +
			"answer says so. Without -p the policy is the one that 'agentsh exec' uses in this directory. The exit\n" +
			"code is 1 when the request is not allowed.",
		Example: `  agentsh policy explain -- npm test
  agentsh policy explain -p strict.yaml -- git push --force
  agentsh policy explain -p strict.yaml --file /etc/shadow --op read
  agentsh policy explain -p strict.yaml --net example.com:443`,
		RunE: func(cmd *cobra.Command, argv []string) error {
			request, err := q.request(argv)
			if err != nil {
				return err
			}
			p, err := q.at.find(q.policy, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			missing := resolve(p, request)
			by := enforcedBy(policytest.GroupOf(request))
			if q.here {
				if by, err = enforcedHere(cmd.Context(), p, request); err != nil {
					return failure.New(failure.Ours, err, "")
				}
			}
			x := explainRequest(p, request, by)
			x.Missing = missing
			return x.write(cmd.OutOrStdout(), p, request, q.json)
		},
	}
	q.at.flags(cmd)
	f := cmd.Flags()
	discovery.PolicyFlag(f, &q.policy, "the policy `FILE` (default: the one that 'agentsh exec' uses here)")
	f.StringVar(&q.file, "file", "", "a path inside the sandbox")
	f.StringVar(&q.op, "op", "read", "the operation on --file or --socket")
	f.StringVar(&q.net, "net", "", "a destination, HOST:PORT")
	f.StringVar(&q.protocol, "protocol", "tcp", "the protocol of --net, tcp or udp")
	f.StringVar(&q.method, "method", "", "the method of an HTTP request to --net")
	f.StringVar(&q.path, "path", "", "the path of an HTTP request to --net, as the client writes it")
	f.StringVar(&q.socket, "socket", "", "a Unix socket, or @name")
	f.StringVar(&q.signal, "signal", "", "a signal, by name or number")
	f.StringVar(&q.target, "target", "external", "what the process that gets --signal is to the sender")
	f.StringVar(&q.cwd, "cwd", "", "the working directory of the command (default: the workspace)")
	f.IntVar(&q.depth, "depth", 0, "how many programs stand between the operator and the command")
	f.StringVar(&q.parent, "parent", "", "the program that starts the command")
	f.BoolVar(&q.interactive, "interactive", false, "the command has a terminal")
	f.BoolVar(&q.json, "json", false, "print one JSON object")
	f.BoolVar(&q.here, "here", false, "try what enforces the decision on this machine")
	return cmd
}

// request reads the question; exactly one must be asked.
func (q *question) request(argv []string) (policy.Request, error) {
	asked := 0
	for _, given := range []bool{len(argv) > 0, q.file != "", q.net != "", q.socket != "", q.signal != ""} {
		if given {
			asked++
		}
	}
	switch {
	case asked != 1:
		return nil, failure.Usagef("ask about one of: a command after --, --file, --net, --socket, --signal")
	case q.net == "" && (q.method != "" || q.path != ""):
		return nil, failure.Usagef("--method and --path are about --net")
	case q.file != "":
		return q.fileRequest()
	case q.net != "":
		r, err := networkRequest(q.net, q.protocol)
		if err != nil {
			return nil, err
		}
		r.Method, r.Path = q.method, q.path
		if r.Path != "" && r.Method == "" {
			r.Method = "GET"
		}
		return r, nil
	case q.socket != "":
		op := q.op
		if op == "read" {
			op = "connect"
		}
		return &policy.UnixSocketRequest{Path: q.socket, Op: op}, nil
	case q.signal != "":
		number, ok := policy.ParseSignal(q.signal)
		if !ok {
			return nil, failure.Usagef("%s is not a signal", q.signal)
		}
		return &policy.SignalRequest{Signal: number, Target: q.target}, nil
	}
	return q.command(argv)
}

func (q *question) fileRequest() (policy.Request, error) {
	op, ok := policy.ParseFileOp(q.op)
	if !ok || op&(op-1) != 0 {
		return nil, failure.Usagef("--op %s is not one operation of file_rules", q.op)
	}
	file, err := filepath.Abs(q.file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", q.file, err)
	}
	return &policy.FileRequest{Path: file, Op: op}, nil
}

func networkRequest(destination, protocol string) (*policy.NetworkRequest, error) {
	host, port, err := net.SplitHostPort(destination)
	if err != nil {
		f := mistake.Destination(destination)
		return nil, failure.New(failure.Usage, fmt.Errorf("--net %s is not HOST:PORT", destination), f.Hint)
	}
	number, err := strconv.Atoi(port)
	if f := mistake.Destination(destination); f.Found() {
		return nil, failure.New(failure.Usage, errors.New("--net "+destination+" is not HOST:PORT"), f.Hint)
	}
	if err != nil {
		return nil, failure.Usagef("--net %s: the port is not a number", destination)
	}
	r := &policy.NetworkRequest{Port: number, Protocol: protocol}
	if addr, err := netip.ParseAddr(host); err == nil {
		r.Addr = addr
	} else {
		r.Domain = host
	}
	return r, nil
}

// command is the request for a command of the operator.
func (q *question) command(argv []string) (policy.Request, error) {
	r := policytest.Command(argv)
	r.Cwd, r.Depth, r.Interactive, r.Parent = q.cwd, q.depth, q.interactive, q.parent
	if r.Cwd == "" {
		vars, err := q.at.values()
		if err != nil {
			return nil, err
		}
		r.Cwd = vars["WORKSPACE"]
	}
	if r.Parent != "" {
		r.Ancestors = []string{r.Parent}
		r.Depth = max(r.Depth, 1)
	}
	return r, nil
}

// enforcedBy says what enforces the decisions of a group in a sandbox.
func enforcedBy(g policy.Group) string {
	switch g {
	case policy.GroupCommand:
		return "the notification of each execve, verified before the program's first instruction"
	case policy.GroupFile:
		return "the mounts of the sandbox; below the workspace, its file server"
	case policy.GroupNetwork:
		return "the sandbox's own network, whose only way out is the supervisor's proxy; with --share-network each TCP connection by " +
			"notification, and no other sockets"
	case policy.GroupUnixSocket:
		return "the mounts of the sandbox, which show the sockets of the machine that a rule names; those of the session by notification"
	case policy.GroupSignal:
		return "the process namespace of the sandbox, and the notification of each signal"
	}
	return ""
}

// enforcedHere tries the mechanisms of this machine and says which of them
// enforces a decision.
func enforcedHere(ctx context.Context, p *policy.Policy, request policy.Request) (string, error) {
	operator, err := host.ReadConfig(layout.Config, true)
	if err != nil {
		return "", err
	}
	report, err := host.Detect(ctx, operator)
	if err != nil {
		return "", err
	}
	name := map[policy.Group]string{
		policy.GroupCommand: "commands", policy.GroupFile: "files outside the workspace", policy.GroupNetwork: "network",
		policy.GroupUnixSocket: "unix sockets", policy.GroupSignal: "signals",
	}[policytest.GroupOf(request)]
	if f, ok := request.(*policy.FileRequest); ok && strings.HasPrefix(f.Path+"/", p.Vars()["WORKSPACE"]+"/") {
		name = "files in the workspace"
	}
	for _, g := range report.Groups {
		if g.Group == name {
			return fmt.Sprintf("%s: %s", g.EnforcedBy, g.How), nil
		}
	}
	return "", fmt.Errorf("nothing is known of what enforces %s", name)
}

// explanation is one decision, and why it was made.
type explanation struct {
	Request  string         `json:"request"`
	Missing  string         `json:"missing,omitempty"` // a program that was not found, and why
	Decision string         `json:"decision"`
	Rule     *wire.RuleAt   `json:"rule"` // null: the default of the group
	Message  string         `json:"message,omitempty"`
	Hint     string         `json:"hint,omitempty"`
	Instead  string         `json:"instead,omitempty"` // of a redirected request
	GitGuard string         `json:"git_guard,omitempty"`
	Enforced string         `json:"enforced"`
	Inside   []insideOfText `json:"inside,omitempty"` // the commands of a shell's -c
	Unread   string         `json:"unread,omitempty"` // why that text could not be read

	group policy.Group
}

type insideOfText struct {
	Request  string `json:"request"`
	Decision string `json:"decision"`
	Rule     string `json:"rule"`
}

// write prints one decision. The exit code distinguishes a denial.
func (x *explanation) write(out io.Writer, p *policy.Policy, request policy.Request, asJSON bool) error {
	inner := x.text(p, request)
	if asJSON {
		if err := indentJSON(out, x); err != nil {
			return err
		}
	} else {
		x.print(out)
	}
	if x.permits() && inner {
		return nil
	}
	return failure.New(failure.Found, nil, "")
}

func (x *explanation) permits() bool {
	return x.Decision == policy.Allow.String() || x.Decision == policy.Audit.String()
}

func explainRequest(p *policy.Policy, request policy.Request, by string) *explanation {
	d, diagnostic := p.Evaluate(request)
	x := &explanation{
		Request: policytest.Describe(request), Decision: d.Effect.String(), Message: diagnostic.Message, Hint: diagnostic.Hint,
		GitGuard: guardAt(p, request), Enforced: by, group: policytest.GroupOf(request),
	}
	if d.Rule != nil {
		x.Rule = &wire.RuleAt{Name: d.Rule.Name, File: d.Rule.Pos.File, Line: d.Rule.Pos.Line, Column: d.Rule.Pos.Column}
	}
	if d.Effect == policy.Redirect && d.Rule != nil && d.Rule.Redirect != nil {
		to := d.Rule.Redirect
		x.Instead = strings.TrimSpace(strings.Join(append([]string{to.Command, to.Path}, to.Args...), " "))
	}
	return x
}

func (x *explanation) print(out io.Writer) {
	rule := fmt.Sprintf("none, the default of the %s group", x.group)
	if x.Rule != nil {
		rule = fmt.Sprintf("%s at %s", x.Rule.Name, x.Rule.Position())
	}
	lines := []struct{ name, text string }{
		{"request:", x.Request}, {"program:", x.Missing}, {"decision:", x.Decision}, {"rule:", rule},
		{"because:", x.Message}, {"hint:", x.Hint}, {"instead:", x.Instead},
		{"also:", x.GitGuard}, {"enforced:", x.Enforced}, {"inside:", x.Unread},
	}
	for _, l := range lines {
		if l.text != "" {
			fmt.Fprintf(out, "%-9s %s\n", l.name, l.text)
		}
	}
	for _, i := range x.Inside {
		fmt.Fprintf(out, "inside:   %s: %s by rule %s\n", i.Request, i.Decision, i.Rule)
	}
}

// guardAt says where git_guard decides too, by content that no request has.
func guardAt(p *policy.Policy, request policy.Request) string {
	const changes = policy.OpWrite | policy.OpCreate | policy.OpRename | policy.OpLink | policy.OpSymlink | policy.OpMkdir | policy.OpMknod
	on, at := p.GitGuard()
	f, ok := request.(*policy.FileRequest)
	if !on || !ok || f.Op&changes == 0 {
		return ""
	}
	name := path.Base(f.Path)
	if name == ".git" || gitguard.Completes(name) || gitguard.MayBeGuarded(path.Base(path.Dir(f.Path)), name) {
		return fmt.Sprintf("git_guard at %s: in a repository git reads this name, so its content or its target is evaluated", at)
	}
	return ""
}

// text adds the decision on each command that the text of a shell's -c names, and
// reports whether all are allowed. The words that a shell would compute are taken
// as they are written.
func (x *explanation) text(p *policy.Policy, request policy.Request) bool {
	q, ok := request.(*policy.CommandRequest)
	if !ok || !isShell(q.Argv[0]) {
		return true
	}
	at := slices.IndexFunc(q.Argv, func(w string) bool { return len(w) > 1 && w[0] == '-' && w[1] != '-' && strings.HasSuffix(w, "c") })
	if at < 0 || at+1 >= len(q.Argv) {
		return true
	}
	commands, err := policy.ShellCommands(q.Argv[at+1])
	if err != nil {
		x.Unread = err.Error()
		return true
	}
	allowed := true
	for _, c := range commands {
		inner := policytest.Command(c.Argv)
		inner.Cwd = q.Cwd
		resolve(p, inner)
		inner.Cwd, inner.Depth, inner.Parent, inner.Ancestors = q.Cwd, q.Depth+1, q.Path, []string{q.Path}
		d, diagnostic := p.Evaluate(inner)
		allowed = allowed && d.Permits()
		x.Inside = append(x.Inside, insideOfText{policytest.Describe(policytest.Command(c.Argv)), d.Effect.String(), diagnostic.Rule})
	}
	return allowed
}

func isShell(name string) bool {
	return slices.Contains([]string{"bash", "sh", "dash", "ksh", "zsh"}, filepath.Base(name))
}
