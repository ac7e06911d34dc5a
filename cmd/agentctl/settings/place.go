package settings

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"agentsh/cmd/agentctl/output"
	"agentsh/controller"
	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/blaxel"
	"agentsh/controller/sandbox/docker"
	"agentsh/controller/sandbox/kubernetes"
	"agentsh/controller/sandbox/local"
	"agentsh/controller/sandbox/openshell"
	"agentsh/controller/sandbox/remote"
	"agentsh/controller/sandbox/vm"
	"agentsh/internal/layout"
	"agentsh/internal/socket"
	"agentsh/internal/statedir"
)

// Placement say where sandboxes are.
type Placement struct {
	Backend string // empty: local
	Connect string
	Key     string // file with the key of a place that listens
	Lease   time.Duration
	Look    bool // Collect asks the place in any case
	Flags   *pflag.FlagSet
	images  map[string]string // path of an image, by the name in harnesses
	harness bool              // a harness may name the backend
}

// backends are the values of --backend.
var backends = []string{local.Name, remote.NameExec, remote.NameSSH, remote.NameSocket, docker.Name, docker.NamePodman,
	kubernetes.Name, vm.Name, blaxel.Name, openshell.Name}

// Add adds the flags to a command.
func (f *Placement) Add(cmd *cobra.Command) {
	f.Flags = cmd.Flags()
	cmd.Flags().StringVar(&f.Backend, "backend", local.Name, "kind of sandbox: "+strings.Join(backends, ", "))
	cmd.Flags().StringVar(&f.Connect, "connect", "",
		"`ADDRESS` of the place for --backend: ssh://USER@HOST:PORT, exec:PROGRAM ARGUMENT... that leads to a shell there, "+
			"or of a socket where 'agentsh serve --listen' answers: "+socket.Forms+
			"; or of the engine for docker and podman: unix://PATH, ssh://USER@HOST, tcp://HOST:PORT, context:NAME or connection:NAME "+
			"(default: that of its own program); or of a cluster: "+kubernetes.Forms+"; or at Blaxel: "+blaxel.Forms+
			"; or of a gateway of OpenShell: https://HOST:PORT, or its name there")
	cmd.Flags().
		StringVar(&f.Key, "connect-key", "", "`FILE` with the key of the place, for --backend socket, or with the API key for --backend blaxel")
	cmd.Flags().DurationVar(&f.Lease, "lease", remote.DefaultLease,
		"elsewhere: how long the sandbox outlives a broken stream, and agentctl")
	Complete(cmd, "backend", backends)
}

// OpenState opens the state directory and the backend.
func (f Placement) OpenState(agentsh, config string) (statedir.Dir, sandbox.Backend, error) {
	var none statedir.Dir
	if err := f.check(config); err != nil {
		return none, nil, err
	}
	agentsh, err := Absolute(agentsh)
	if err != nil {
		return none, nil, err
	}
	if config, err = Absolute(config); err != nil {
		return none, nil, err
	}
	state, err := State()
	if err != nil {
		return none, nil, err
	}
	backend, err := f.open(state, agentsh, config)
	return state, backend, err
}

// choosable is the backend of a command line that names none. A harness may name another.
type choosable struct {
	*local.Backend
	state           statedir.Dir
	agentsh, config string
	given           Placement // on the command line

	mu     sync.Mutex
	chosen map[[3]string]sandbox.Backend // by name, address and file of the key
}

// Choose implements [sandbox.Chooser]. Runs that choose the same get one backend.
func (c *choosable) Choose(name, address, keyFile string) (sandbox.Backend, error) {
	address, keyFile = cmp.Or(c.given.Connect, address), cmp.Or(c.given.Key, keyFile)
	if name == "" && address == "" && keyFile == "" {
		return c, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	key := [3]string{name, address, keyFile}
	if b := c.chosen[key]; b != nil {
		return b, nil
	}
	of := Placement{Backend: name, Connect: address, Key: keyFile, Lease: c.given.Lease, images: c.given.images}
	if err := of.check(c.config); err != nil {
		return nil, err
	}
	b, err := of.open(c.state, c.agentsh, c.config)
	if err == nil {
		c.chosen[key] = b
	}
	return b, err
}

// check rejects a combination of flags.
func (f Placement) check(config string) error {
	name := cmp.Or(f.Backend, local.Name)
	wrong := func(hint, format string, args ...any) error {
		return &output.Failure{Code: controller.ExitConfiguration, Err: fmt.Errorf(format, args...), Hint: hint}
	}
	switch {
	case f.choosable() && f.harness:
		return nil // see [choosable.Choose]
	case name == local.Name && f.Connect != "":
		return wrong("write backend: NAME in the harness, or add --backend NAME: "+elsewhere(), "--connect: the local backend is on this machine")
	case name == local.Name && f.Key != "":
		return wrong("add --backend socket", "--connect-key: the local backend is on this machine")
	case name == local.Name:
		return nil
	case !slices.Contains(backends, name):
		return wrong("this build has: "+strings.Join(backends, ", "), "unknown backend %q", name)
	case f.Lease != 0 && (f.Lease < remote.ShortestLease || f.Lease > remote.LongestLease):
		return wrong("", "--lease %s: %s to %s", f.Lease, remote.ShortestLease, remote.LongestLease)
	case f.isEngine() && f.Key != "":
		return wrong("see doc/platforms/docker.md", "--connect-key: an engine has no key of a place")
	case f.isEngine():
		return nil
	case f.Backend == kubernetes.Name && f.Key != "":
		return wrong("see doc/platforms/kubernetes.md", "--connect-key: a cluster has no key of a place")
	case f.Backend == kubernetes.Name && config != "":
		return wrong(
			"put "+layout.Config+" into the image, or mount it",
			"--agentsh-config: the configuration of the image applies there",
		)
	case f.Backend == kubernetes.Name:
		return nil
	case f.Backend == openshell.Name && f.Key != "":
		return wrong("write openshell: {token_file: FILE} in agentctl.yaml", "--connect-key: a gateway takes a token or a certificate")
	case f.Backend == openshell.Name && config != "":
		return wrong("put "+layout.Config+" into the image", "--agentsh-config: the configuration of the image applies there")
	case f.Backend == openshell.Name:
		return nil
	case f.Backend == blaxel.Name && config != "":
		return wrong("put "+layout.Config+" into the image", "--agentsh-config: the configuration of the image applies there")
	case f.Backend == blaxel.Name:
		return nil
	case f.Backend == vm.Name && (f.Connect != "" || f.Key != ""):
		return wrong("write vm: {driver: NAME} in agentctl.yaml", "--connect and --connect-key: a virtual machine is on this machine")
	case f.Backend == vm.Name:
		return nil
	case f.Connect == "":
		return wrong("see doc/remote.md", "backend %s needs an address: write --connect, or the key connect", name)
	case config != "":
		return wrong("change "+layout.Config+" of the place", "--agentsh-config: the configuration of the place applies there")
	}
	return nil
}

// choosable reports whether the command line names no backend.
func (f Placement) choosable() bool {
	return f.Backend == "" || f.Backend == local.Name && f.Flags != nil && !f.Flags.Changed("backend")
}

// elsewhere lists the backends that take an address.
func elsewhere() string {
	var out []string
	for _, name := range backends {
		if name != local.Name && name != vm.Name {
			out = append(out, name)
		}
	}
	return strings.Join(out, ", ")
}

// isEngine reports whether the sandboxes are in containers of an engine.
func (f Placement) isEngine() bool {
	return f.Backend == docker.Name || f.Backend == docker.NamePodman
}

// open makes the backend.
func (f Placement) open(state statedir.Dir, agentsh, config string) (sandbox.Backend, error) {
	if cmp.Or(f.Backend, local.Name) == local.Name {
		b := local.New(local.Config{State: state, Agentsh: agentsh, Operator: config})
		if !f.choosable() {
			return b, nil
		}
		return &choosable{
			Backend: b, state: state, agentsh: agentsh, config: config, given: f, chosen: map[[3]string]sandbox.Backend{},
		}, nil
	}
	if f.isEngine() {
		b, err := docker.Open(docker.Config{
			Name: f.Backend, Address: f.Connect, State: state, Agentsh: agentsh, Operator: config, Lease: f.Lease, Look: f.Look, Getenv: os.Getenv,
		})
		if err != nil {
			return nil, &output.Failure{Code: controller.ExitConfiguration, Err: err, Hint: "see doc/platforms/docker.md"}
		}
		return b, nil
	}
	if f.Backend == kubernetes.Name {
		c, err := readConfig()
		if err != nil {
			return nil, &output.Failure{Code: controller.ExitConfiguration, Err: err}
		}
		b, err := kubernetes.Open(kubernetes.Config{
			Address: c.cluster.Address(f.Connect), State: state, Agentsh: agentsh, Lease: f.Lease, Look: f.Look, Getenv: os.Getenv,
		})
		if err != nil {
			return nil, &output.Failure{Code: controller.ExitConfiguration, Err: err, Hint: "see doc/platforms/kubernetes.md"}
		}
		return b, nil
	}
	if f.Backend == vm.Name {
		return f.openMachines(state, agentsh, config)
	}
	if f.Backend == openshell.Name {
		return f.openGateway(state, agentsh)
	}
	if f.Backend == blaxel.Name {
		b, err := blaxel.Open(blaxel.Config{
			Address: f.Connect, KeyFile: f.Key, State: state, Agentsh: agentsh, Lease: f.Lease, Look: f.Look, Getenv: os.Getenv,
		})
		if err != nil {
			return nil, &output.Failure{Code: controller.ExitConfiguration, Err: err, Hint: "see doc/platforms/blaxel.md"}
		}
		return b, nil
	}
	b, err := remote.Open(f.Backend, f.Connect, f.Key, remote.Config{State: state, Agentsh: agentsh, Lease: f.Lease, Look: f.Look})
	if err != nil {
		return nil, &output.Failure{Code: controller.ExitConfiguration, Err: errors.Join(err), Hint: "see doc/remote.md"}
	}
	return b, nil
}

// openGateway makes the backend of a gateway of OpenShell, as the configuration describes it.
func (f Placement) openGateway(state statedir.Dir, agentsh string) (sandbox.Backend, error) {
	c, err := readConfig()
	if err != nil {
		return nil, &output.Failure{Code: controller.ExitConfiguration, Err: err}
	}
	c.gateway.Address = cmp.Or(f.Connect, c.gateway.Address)
	b, err := openshell.Open(openshell.Config{
		Gateway: c.gateway, Start: c.start, Without: c.without, Providers: c.kept, State: state, Agentsh: agentsh, Lease: f.Lease, Look: f.Look,
		Getenv: os.Getenv,
	})
	if err != nil {
		return nil, &output.Failure{Code: controller.ExitConfiguration, Err: err, Hint: "see doc/platforms/openshell.md"}
	}
	return b, nil
}

// openMachines makes the backend of virtual machines, as the configuration describes them.
func (f Placement) openMachines(state statedir.Dir, agentsh, operator string) (sandbox.Backend, error) {
	c, err := readConfig()
	if err != nil {
		return nil, &output.Failure{Code: controller.ExitConfiguration, Err: err}
	}
	images := maps.Clone(c.images)
	maps.Copy(images, f.images)
	b, err := vm.Open(vm.Config{
		Machine: c.machine, Images: images, State: state, Agentsh: agentsh, Operator: operator, Lease: f.Lease, Look: f.Look,
	})
	if err != nil {
		return nil, &output.Failure{Code: controller.ExitConfiguration, Err: err, Hint: "see doc/platforms/vm.md"}
	}
	return b, nil
}
