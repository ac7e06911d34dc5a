// Package program drives the program openshell, for gateways of OpenShell 0.0.x: the numbers of their messages are others in each
// version, the command line is the same in all versions that this package takes.
//
// The sources of v0.0.45 to v0.0.87 were compared (crates/openshell-cli: main.rs, run.rs, ssh.rs). In all of these the same are the
// options of 'sandbox create' and 'sandbox list', what 'status', 'sandbox list -o json', 'sandbox delete' and 'sandbox ssh-config' print,
// and the errors of 'sandbox create'. Before, there is no list in JSON, and before 0.0.37 there are no labels; from 0.0.88 sandboxes are in
// workspaces.
package program

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/host"
	"agentsh/internal/lazy"
	"agentsh/internal/text"
)

// Name is the name of the program.
const Name = "openshell"

// Versions of OpenShell 0.0 that were read.
const (
	First = 45
	Last  = 87
)

// Known reports whether a version is one of those that were read.
func Known(version string) bool {
	rest, is := strings.CutPrefix(strings.TrimPrefix(version, "v"), "0.0.")
	n, err := strconv.Atoi(rest)
	return is && err == nil && n >= First && n <= Last && rest == strconv.Itoa(n)
}

// Refused is the error of a version that was not read.
func Refused(what, version string) error {
	return &sandbox.End{
		Kind: sandbox.EndRefused,
		Text: fmt.Sprintf("%s is OpenShell %.40q: of 0.0.x this agentctl takes 0.0.%d to 0.0.%d", what, version, First, Last),
		Hint: fmt.Sprintf("install OpenShell 0.1, or one of 0.0.%d to 0.0.%d, at the gateway and here; or reach a sandbox by SSH with "+
			"--backend exec: see doc/platforms/openshell.md", First, Last),
	}
}

// Program is the program, with a gateway that is registered for the user.
type Program struct {
	Gateway string   // name
	Dir     string   // where it runs; of Create: a directory without one of the image's name, which it would build from
	Environ []string // see [agentsh/controller/sandbox/openshell/gateways.Environ]
}

// Times of the program.
const (
	askTime    = 30 * time.Second
	createTime = 6 * time.Minute // the program itself waits for 5 minutes without progress
)

// maxOutput bounds what is read of the output, in bytes. A list of 100 sandboxes has about 50 KiB.
const maxOutput = 4 << 20

// maxSaid bounds what is shown of a message, in characters.
const maxSaid = 300

// run runs the program, and returns what it printed.
func (p Program) run(ctx context.Context, limit time.Duration, args ...string) (string, error) {
	argv := append([]string{Name}, args...)
	res, err := host.Run(ctx, host.Command{Argv: argv, Dir: p.Dir, Env: p.Environ, MaxOutput: maxOutput, Timeout: limit})
	switch {
	case errors.Is(err, host.ErrNotFound) || errors.Is(err, fs.ErrNotExist):
		return "", &sandbox.End{
			Kind: sandbox.EndRefused, Err: err, Text: "the gateway is one of OpenShell 0.0.x, and this machine has no program openshell to reach it",
			Hint: "install the openshell of the gateway's version, so that it is on the PATH of agentctl",
		}
	case errors.Is(err, host.ErrTimeout):
		return "", &sandbox.End{
			Kind: sandbox.EndUnreachable, Err: err, Text: fmt.Sprintf("'%s' did not end within %s", strings.Join(argv, " "), limit),
			Hint: "is the gateway running? See 'openshell status'",
		}
	case err != nil:
		return "", err
	}
	if res.Err() != nil {
		return "", p.failed(args, plain(string(res.Stderr)+"\n"+string(res.Stdout)), res.Err())
	}
	return string(res.Stdout), nil
}

// ask runs a command for the gateway.
func (p Program) ask(ctx context.Context, limit time.Duration, args ...string) (string, error) {
	return p.run(ctx, limit, append([]string{"--gateway", p.Gateway}, args...)...)
}

// colors are terminal codes: the program prints them to files as well.
var colors = lazy.Regexp(`\x1b\[[0-9;]*m`)

// frame is what begins the lines of an error, which have 80 columns.
var frame = lazy.Regexp(`(?m)^\s*(?:Error:|[×│├╰─▶]+)(?:\s*[×│├╰─▶]+)*`)

// plain is a message of the program on one line.
func plain(message string) string {
	return strings.Join(strings.Fields(frame().ReplaceAllString(colors().ReplaceAllString(message, ""), " ")), " ")
}

// causes are ends by what the program prints. The words of gRPC's codes are those of tonic 0.12 and 0.14, which these versions have.
var causes = []struct {
	words []string
	kind  sandbox.EndKind
	hint  string
}{
	{
		[]string{"ImagePull", "ErrImage", "InvalidImageName", "failed to pull", "is not present locally and image_pull_policy"},
		sandbox.EndImage, "name an image that the gateway can pull, as HOST/NAME:TAG",
	},
	{
		[]string{"ResourceExhausted", "Some resource has been exhausted", "exceeded quota"},
		sandbox.EndQuota, "delete sandboxes ('agentctl gc' finds those of this host), or have the quota raised",
	},
	{
		[]string{"Unauthenticated", "does not have valid authentication credentials", "PermissionDenied", "does not have permission"},
		sandbox.EndRefused, "'openshell gateway login NAME' renews what the program has of the gateway",
	},
	{
		[]string{
			"failed to connect to gateway", "Unavailable", "service is currently unavailable", "transport error", "tcp connect error", "Deadline",
		},
		sandbox.EndUnreachable, "is the gateway running? See 'openshell status'",
	},
	{
		[]string{"provisioning timed out", "provisioning stream ended"},
		sandbox.EndNoRoom, "look at 'openshell sandbox list' and the log of the gateway",
	},
	{[]string{"entered error phase"}, sandbox.EndDied, "look at the log of the gateway, and start the run again"},
}

// ErrExists is in the error of a sandbox whose name is taken.
var ErrExists = errors.New("another sandbox has its name")

// failed is the error of a command that failed.
func (p Program) failed(args []string, said string, err error) error {
	end := &sandbox.End{Kind: sandbox.EndRefused, Err: err, Hint: "see doc/platforms/openshell.md"}
	end.Text = fmt.Sprintf("'%s %s': %s", Name, command(args), text.Short(said, maxSaid))
	if strings.Contains(said, "delete it first with: openshell sandbox delete") {
		end.Err, end.Hint = ErrExists, "a sandbox of that name is there: 'agentctl gc' removes those of this host"
		return end
	}
	for _, c := range causes {
		if slices.ContainsFunc(c.words, func(w string) bool { return strings.Contains(said, w) }) {
			end.Kind, end.Hint = c.kind, strings.ReplaceAll(c.hint, "NAME'", p.Gateway+"'")
			break
		}
	}
	return end
}

// command is the command in the arguments, without options.
func command(args []string) string {
	if len(args) > 1 && args[0] == "--gateway" {
		args = args[2:]
	}
	n := 0
	for n < len(args) && n < 2 && !strings.HasPrefix(args[n], "-") {
		n++
	}
	return strings.Join(args[:max(n, min(1, len(args)))], " ")
}

// Check asks for the versions of the program and of the gateway, and whether the user may list sandboxes.
func (p Program) Check(ctx context.Context) error {
	said, err := p.run(ctx, askTime, "--version")
	if err != nil {
		return err
	}
	name, version, _ := strings.Cut(strings.TrimSpace(said), " ")
	if name != Name || !Known(version) {
		return Refused("the program openshell of this machine", version)
	}
	said, err = p.ask(ctx, askTime, "status")
	if err != nil {
		return err
	}
	status := fields(said)
	if status["Status"] != "Connected" { // it ends with status 0 whatever it finds
		return &sandbox.End{
			Kind: sandbox.EndUnreachable, Hint: "is the gateway running?",
			Text: fmt.Sprintf("'openshell status' says of gateway %s: %s", p.Gateway, text.Short(plain(said), maxSaid)),
		}
	}
	if !Known(status["Version"]) {
		return Refused("gateway "+p.Gateway, status["Version"])
	}
	_, err = p.ask(ctx, askTime, "sandbox", "list", "--limit", "1", "--output", "json")
	return err
}

// fields are the lines 'NAME: VALUE' of an output.
func fields(said string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(said) {
		name, value, is := strings.Cut(strings.TrimSpace(colors().ReplaceAllString(line, "")), ":")
		if _, twice := out[name]; is && !twice {
			out[name] = strings.TrimSpace(value)
		}
	}
	return out
}

// New describes a sandbox.
type New struct {
	Name   string
	Image  string
	Policy string // file
	Labels map[string]string
}

// Create makes a sandbox and waits until it is ready. The sandbox stays when its first command has ended.
func (p Program) Create(ctx context.Context, n New) error {
	args := []string{
		"sandbox", "create", "--name", n.Name, "--from", n.Image, "--policy", n.Policy, "--no-tty", "--no-auto-providers",
	}
	for _, key := range slices.Sorted(maps.Keys(n.Labels)) {
		args = append(args, "--label", key+"="+n.Labels[key])
	}
	_, err := p.ask(ctx, createTime, append(args, "--", "true")...)
	return err
}

// Sandbox is a sandbox in a list.
type Sandbox struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels"`
	Phase  string            `json:"phase"`
}

// Phases of a [Sandbox].
const (
	Ready    = "Ready"
	Error    = "Error"
	Deleting = "Deleting"
)

// page is how many sandboxes are asked for at once.
const page = 100

// maxPages bounds a list.
const maxPages = 100

// List lists the sandboxes with a label.
func (p Program) List(ctx context.Context, key, value string) ([]Sandbox, error) {
	var out []Sandbox
	for n := range maxPages {
		said, err := p.ask(ctx, askTime, "sandbox", "list", "--selector", key+"="+value,
			"--limit", strconv.Itoa(page), "--offset", strconv.Itoa(n*page), "--output", "json")
		if err != nil {
			return nil, err
		}
		var list []Sandbox
		if err := json.Unmarshal([]byte(said), &list); err != nil {
			return nil, fmt.Errorf("'openshell sandbox list' printed no list in JSON: %w: %s", err, text.Short(said, maxSaid))
		}
		for _, s := range list {
			if s.Labels[key] == value { // a program that ignores the selector would list those of others
				out = append(out, s)
			}
		}
		if len(list) < page {
			return out, nil
		}
	}
	return nil, fmt.Errorf("the gateway has more than %d sandboxes with label %s", page*maxPages, key)
}

// Delete deletes a sandbox. One that is gone is no error: the program says so and ends with status 0.
func (p Program) Delete(ctx context.Context, name string) error {
	said, err := p.ask(ctx, askTime, "sandbox", "delete", name)
	if err != nil {
		return err
	}
	if said := plain(said); !strings.Contains(said, "Deleted sandbox "+name) && !strings.Contains(said, "Sandbox "+name+" not found") {
		return fmt.Errorf("'openshell sandbox delete %s' printed %s", name, text.Short(said, maxSaid))
	}
	return nil
}

// Host is the name of a sandbox in the configuration of ssh.
func Host(name string) string { return "openshell-" + name }

// sshKeys are the words that a configuration may have.
var sshKeys = []string{
	"Host", "User", "StrictHostKeyChecking", "UserKnownHostsFile", "GlobalKnownHostsFile", "LogLevel", "ServerAliveInterval",
	"ServerAliveCountMax", "ProxyCommand",
}

// SSHConfig is the configuration of ssh for a sandbox. It has no secret: the program that it names gets a token for each connection.
func (p Program) SSHConfig(ctx context.Context, name string) (string, error) {
	said, err := p.ask(ctx, askTime, "sandbox", "ssh-config", name)
	if err != nil {
		return "", err
	}
	seen := map[string]string{}
	for line := range strings.Lines(said) {
		word, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if _, twice := seen[word]; word != "" && (twice || !slices.Contains(sshKeys, word)) {
			return "", fmt.Errorf("'openshell sandbox ssh-config %s' printed an unexpected line: %s", name, text.Short(line, maxSaid))
		}
		seen[word] = value
	}
	if proxy := seen["ProxyCommand"]; seen["Host"] != Host(name) || !strings.Contains(proxy, " ssh-proxy --gateway-name ") ||
		strings.Contains(proxy, "--token") {
		return "", fmt.Errorf("'openshell sandbox ssh-config %s' printed another configuration: %s", name, text.Short(said, maxSaid))
	}
	return said, nil
}
