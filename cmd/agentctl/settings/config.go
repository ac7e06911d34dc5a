package settings

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"agentsh/controller/harness"
	rules "agentsh/controller/openshell"
	"agentsh/controller/sandbox/openshell"
	"agentsh/controller/sandbox/openshell/gateways"
	"agentsh/controller/sandbox/vm"
	"agentsh/controller/webhook"
	"agentsh/internal/prometheus"
	"agentsh/internal/strictyaml"
)

// configName is the name of agentctl's configuration file.
const configName = "agentctl.yaml"

// configFiles are agentctl's configuration files: the machine's, then the user's.
func configFiles() []string {
	files := []string{filepath.Join("/etc/agentsh", configName)}
	if dir, err := os.UserConfigDir(); err == nil {
		files = append(files, filepath.Join(dir, "agentsh", configName))
	}
	return files
}

// config is what the configuration files say.
type config struct {
	images  map[string]string // path of the root file system, by name
	webhook string            // URL
	keyFile string            // of the webhook
	machine vm.Machine        // virtual machines
	cluster harness.Cluster
	otlp    collector
	metrics prometheus.Config
	gateway openshell.Gateway
	start   []string                      // starts the gateway of this machine; empty: nothing does
	without []string                      // guarantees that OpenShell does not hold and a run may lose
	kept    map[string]openshell.Provider // of the gateway, by the name of a provider of harnesses

	hasMachine, hasCluster, hasGateway bool
}

// readConfig reads the configuration files. The user's file wins over the machine's.
func readConfig() (config, error) {
	c := config{images: map[string]string{}}
	for _, name := range configFiles() {
		of, err := readConfigFile(name)
		if err != nil {
			return c, err
		}
		maps.Copy(c.images, of.images)
		if of.webhook != "" {
			c.webhook, c.keyFile = of.webhook, of.keyFile
		}
		if of.hasGateway {
			c.gateway, c.start, c.without, c.kept = of.gateway, of.start, of.without, of.kept
			c.hasGateway = true
		}
		if of.hasMachine {
			c.machine = of.machine
		}
		if of.hasCluster {
			c.cluster = of.cluster
		}
		if of.otlp.url != "" {
			c.otlp = of.otlp
		}
		if of.metrics.Address != "" {
			c.metrics = of.metrics
		}
	}
	return c, nil
}

// configDialect is what a configuration file may contain.
var configDialect = strictyaml.Dialect{MaxBytes: 1 << 20, MaxDepth: 6, CoreTags: true, Empty: true}

// readConfigFile reads a configuration file. Paths start from its directory. A missing file is empty.
func readConfigFile(name string) (config, error) {
	c := config{images: map[string]string{}}
	data, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, fmt.Errorf("configuration: %w", err)
	}
	var problems []string
	add := func(p strictyaml.Problem) { problems = append(problems, p.String()) }
	if root := strictyaml.Parse(name, data, &configDialect, add); root != nil {
		r := configReader{strictyaml.NewReader(name, &configDialect, add)}
		r.Fields(root, "the configuration", map[string]func(*strictyaml.Node){
			"version": func(n *strictyaml.Node) {
				if n.Value != "1" {
					r.Fail(n, "", "version %q: this build reads version 1", n.Value)
				}
			},
			"images":    func(n *strictyaml.Node) { r.images(n, c.images) },
			"approvals": func(n *strictyaml.Node) { r.approvals(n, &c) },
			"vm":        func(n *strictyaml.Node) { r.vm(n, &c) },
			"otlp":      func(n *strictyaml.Node) { r.otlp(n, &c.otlp) },
			"metrics":   func(n *strictyaml.Node) { r.metrics(n, &c.metrics) },
			"openshell": func(n *strictyaml.Node) { r.openshell(n, &c) },
			"kubernetes": func(n *strictyaml.Node) {
				var ps harness.Problems
				c.cluster, ps = harness.ReadCluster(name, n)
				c.hasCluster = true
				for _, p := range ps {
					add(strictyaml.Problem{File: p.At.File, Line: p.At.Line, Column: p.At.Column, Message: p.Message, Hint: p.Hint})
				}
			},
		})
	}
	if len(problems) > 0 {
		return c, errors.New(strings.Join(problems, "\n"))
	}
	return c, nil
}

// configReader reads the values of a configuration file.
type configReader struct{ strictyaml.Reader }

// path reads a path that starts from the directory of the file.
func (r *configReader) path(n *strictyaml.Node, what string) string {
	place, ok := r.Text(n)
	if ok && place == "" {
		r.Fail(n, "", "the path of %s is empty", what)
	}
	if !filepath.IsAbs(place) {
		place = filepath.Join(filepath.Dir(r.File), place)
	}
	return place
}

func (r *configReader) images(n *strictyaml.Node, into map[string]string) {
	r.Keys(n, "images", nil, func(key *strictyaml.Node) func(*strictyaml.Node) {
		return func(v *strictyaml.Node) { into[key.Value] = r.path(v, "an image") }
	})
}

func (r *configReader) approvals(n *strictyaml.Node, c *config) {
	whole := r.Fields(n, "approvals", map[string]func(*strictyaml.Node){
		"webhook":  func(n *strictyaml.Node) { c.webhook, _ = r.Text(n) },
		"key_file": func(n *strictyaml.Node) { c.keyFile = r.path(n, "the key") },
	})
	if whole && (c.webhook == "" || c.keyFile == "") {
		r.Fail(n, "write approvals: {webhook: URL, key_file: FILE}", "webhook and key_file of approvals go together")
	}
}

// vm reads the virtual machines of this host.
func (r *configReader) vm(n *strictyaml.Node, c *config) {
	m := &c.machine
	c.hasMachine = true
	r.Fields(n, "vm", map[string]func(*strictyaml.Node){
		"driver": func(n *strictyaml.Node) {
			if i, ok := r.Word(n, "driver", vm.Drivers); ok {
				m.Driver = vm.Drivers[i]
			}
		},
		"program":   func(n *strictyaml.Node) { m.Program = r.path(n, "the program") },
		"kernel":    func(n *strictyaml.Node) { m.Kernel = r.path(n, "the kernel") },
		"modules":   func(n *strictyaml.Node) { m.Modules = r.path(n, "the modules") },
		"memory_mb": func(n *strictyaml.Node) { m.MemoryMB, _ = r.Int(n, 128, 1<<22) },
		"cpus": func(n *strictyaml.Node) {
			cpus, _ := r.Int(n, 1, 256)
			m.CPUs = int(cpus)
		},
		"emulate": func(n *strictyaml.Node) { m.Emulate, _ = r.Bool(n) },
		"network": func(n *strictyaml.Node) { m.Network = r.network(n) },
	})
}

// openshell reads the gateway of OpenShell.
func (r *configReader) openshell(n *strictyaml.Node, c *config) {
	g := &c.gateway
	c.hasGateway = true
	r.Fields(n, "openshell", map[string]func(*strictyaml.Node){
		"gateway":    func(n *strictyaml.Node) { g.Address, _ = r.Text(n) },
		"start":      func(n *strictyaml.Node) { c.start = r.start(n) },
		"workspace":  func(n *strictyaml.Node) { g.Workspace, _ = r.Text(n) },
		"ca":         func(n *strictyaml.Node) { g.CA = r.path(n, "the certificates") },
		"cert":       func(n *strictyaml.Node) { g.Cert = r.path(n, "the certificate") },
		"key":        func(n *strictyaml.Node) { g.Key = r.path(n, "the key") },
		"token_file": func(n *strictyaml.Node) { g.TokenFile = r.path(n, "the token") },
		"providers":  func(n *strictyaml.Node) { c.kept = r.providers(n) },
		"without": func(n *strictyaml.Node) {
			var words []string
			for _, x := range rules.Guarantees() {
				words = append(words, x.Word)
			}
			r.Items(n, func(item *strictyaml.Node) {
				if i, ok := r.Word(item, "without", words); ok {
					c.without = append(c.without, words[i])
				}
			})
		},
	})
}

// providers reads which providers of the gateway have the credentials of harnesses.
func (r *configReader) providers(n *strictyaml.Node) map[string]openshell.Provider {
	out := map[string]openshell.Provider{}
	r.Keys(n, "providers", nil, func(key *strictyaml.Node) func(*strictyaml.Node) {
		return func(n *strictyaml.Node) {
			set := openshell.Provider{Reconcile: openshell.Attach}
			whole := r.Fields(n, "a provider", map[string]func(*strictyaml.Node){
				"name": func(n *strictyaml.Node) { set.Name, _ = r.Text(n) },
				"type": func(n *strictyaml.Node) { set.Type, _ = r.Text(n) },
				"reconcile": func(n *strictyaml.Node) {
					if i, ok := r.Word(n, "reconcile", openshell.Reconciles); ok {
						set.Reconcile = openshell.Reconciles[i]
					}
				},
			})
			if err := set.Check(key.Value); whole && err != nil {
				r.Fail(n, "see doc/platforms/openshell.md", "%v", err)
			}
			out[key.Value] = set
		}
	})
	return out
}

// start reads the command that starts the gateway of this machine: true is that of OpenShell's packages.
func (r *configReader) start(n *strictyaml.Node) (command []string) {
	if n.Kind != strictyaml.List {
		switch {
		case n.Kind == strictyaml.Scalar && n.Value != "true" && n.Value != "false":
			r.Fail(n, "write start: true, or start: [PROGRAM, ARGUMENT]", "start is neither true nor a list")
		default:
			if yes, _ := r.Bool(n); yes {
				return gateways.Service
			}
		}
		return nil
	}
	r.Items(n, func(item *strictyaml.Node) {
		word, _ := r.Text(item)
		command = append(command, word)
	})
	if len(command) == 0 || command[0] == "" {
		r.Fail(n, "write start: true, or start: [PROGRAM, ARGUMENT]", "start names no program")
	}
	return command
}

// network reads an interface of this host for a virtual machine.
func (r *configReader) network(n *strictyaml.Node) *vm.Network {
	var out vm.Network
	whole := r.Fields(n, "network", map[string]func(*strictyaml.Node){
		"tap": func(n *strictyaml.Node) { out.TAP, _ = r.Text(n) },
		"address": func(n *strictyaml.Node) {
			out.Address, _ = r.Text(n)
			if _, err := netip.ParsePrefix(out.Address); err != nil {
				r.Fail(n, "write it as 172.16.0.2/30", "address %q: no address with the length of its prefix", out.Address)
			}
		},
		"gateway": func(n *strictyaml.Node) { out.Gateway = r.address(n) },
		"dns": func(n *strictyaml.Node) {
			r.Items(n, func(item *strictyaml.Node) { out.DNS = append(out.DNS, r.address(item)) })
		},
	})
	if whole && (out.TAP == "" || out.Address == "") {
		r.Fail(n, "write network: {tap: NAME, address: ADDRESS/BITS}", "network needs tap and address")
	}
	return &out
}

// address reads an IP address.
func (r *configReader) address(n *strictyaml.Node) string {
	text, _ := r.Text(n)
	if _, err := netip.ParseAddr(text); err != nil {
		r.Fail(n, "write it as 172.16.0.1", "%q is no IP address", text)
	}
	return text
}

// approvalFlags say who answers the questions of policies.
type approvalFlags struct {
	webhook string
	keyFile string
}

func (f *approvalFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.webhook, "approval-webhook", "",
		"`URL` that answers the questions of a policy with approvals: {via: webhook} (default: of agentctl.yaml)")
	cmd.Flags().StringVar(&f.keyFile, "approval-key", "", "`FILE` with the key of --approval-webhook")
}

// sender makes what sends questions; nil: nothing is configured.
func (f *approvalFlags) sender(c config) (*webhook.Sender, error) {
	if (f.webhook == "") != (f.keyFile == "") {
		return nil, errors.New("--approval-webhook and --approval-key go together")
	}
	if f.webhook != "" {
		c.webhook, c.keyFile = f.webhook, f.keyFile
	}
	if c.webhook == "" {
		return nil, nil
	}
	s, err := webhook.New(c.webhook, c.keyFile)
	if err != nil {
		return nil, fmt.Errorf("approvals: %w", err)
	}
	return s, nil
}
