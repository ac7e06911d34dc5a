package agentsh

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// ranks is the layer of every package. Imports only go down.
var ranks = map[string]int{
	"policy/glob":                           0,
	"policy":                                0,
	"policy/env":                            0,
	"internal/wire":                         0,
	"internal/rootfs":                       0,
	"internal/listen":                       0, // whoever accepts connections
	"internal/strictyaml":                   0, // whoever reads a YAML file
	"policy/syntax":                         0, // reads policy files; what decides requests knows no YAML
	"policy/internal/fixture":               1, // tests of both
	"policy/policytest":                     1,
	"seccomp":                               1,
	"seccomp/target":                        1,
	"fuse/changes":                          1,
	"fuse/device":                           1, // the protocol of /dev/fuse; knows no paths and no rules
	"fuse/watch":                            1, // what others change in directories; knows no mounts and no nodes
	"fuse/follow":                           1, // keeps the nodes of trees under watch
	"fuse/locks":                            1, // locks on open files; knows no paths and no rules
	"fuse/tree":                             1, // names and nodes; knows rules only as cached decisions
	"fuse":                                  2,
	"internal/channel":                      1,
	"internal/tarfs":                        1,
	"internal/testenv":                      1,
	"internal/layout":                       -1, // names paths, touches none
	"internal/mistake":                      -1, // looks at texts; whoever reads a key asks it
	"internal/rpcid":                        -2, // who reads JSON-RPC and answers a line that it does not take
	"internal/lazy":                         -2, // regular expressions that are compiled at their first use
	"internal/secretfiles":                  -2, // names of files
	"internal/statedir":                     0,
	"internal/paths":                        -1, // questions about names of files
	"internal/project":                      1,  // finds what a command line does not name; starts nothing
	"internal/selfexec":                     0,
	"internal/shellsocket":                  2, // how the shells of a shared session ask for it
	"internal/refusals":                     1, // of a log's events, for a person
	"supervisor/probe/trial":                0, // tests of every package ask it through testenv
	"internal/shim":                         0, // the command installs, sessions show the originals
	"internal/shim/client":                  0, // a program that starts as a shell has it
	"internal/beneath":                      0, // files below a descriptor, through no link
	"internal/trash":                        1, // the file server saves deleted files, the command restores them
	"internal/snapshot":                     1, // checkpoints, previous content and the store of a user
	"internal/memfile":                      0, // every package that hands data to a process by a descriptor
	"internal/fsmagic":                      0, // both programs look at disks
	"internal/syscallblock":                 0, // each thread that waits in the kernel for long
	"internal/siginfo":                      0, // both programs wait for children
	"internal/stdio":                        0, // the first messages of a stream, of both programs
	"internal/resume":                       0, // one connection over streams that break
	"internal/sshcommand":                   1, // what sessions of ssh start in a sandbox; knows no policy
	"internal/socket":                       2, // streams to places that listen, of both programs
	"internal/agentfile":                    0, // every backend starts or sends it
	"internal/prometheus":                   3, // counts of both programs; knows neither runs nor sandboxes
	"internal/foreground":                   2, // both commands run commands of a channel
	"internal/cli":                          1, // the commands that both programs have
	"internal/fakemodel":                    0, // tests of agents talk to it
	"internal/gitguard":                     0, // the file server asks it at each name, the controller about results
	"internal/silence":                      0, // whoever starts processes below another supervisor
	"internal/threads":                      0, // every program that has sessions, or serves their files
	"internal/text":                         0, // both commands and the supervisor show text of agents
	"supervisor/audit/report":               1, // knows events only, not how they are stored
	"controller/fetch":                      0, // reads files by HTTPS, knows no harness
	"controller/openshell":                  0, // reads and writes another project's policies
	"controller/harness":                    1,
	"controller/webui":                      1, // a page; knows no run
	"controller/webhook":                    1, // asks a server; knows questions and no run
	"controller/outside":                    3, // requests of the controller, through the proxy of sessions
	"controller/prescript":                  0, // reads what a script says, knows no run
	"controller/scan":                       1,
	"controller/hook":                       2, // judges by scans; the command is started by agent programs
	"controller/mcpfilter":                  2, // between an agent and its MCP servers, in the sandbox; knows no run
	"controller/sandbox":                    1,
	"controller/image":                      1, // finds root file systems, knows no harness
	"controller/buildcontext":               2, // a directory for a builder elsewhere; knows no builder
	"controller/sandbox/local":              2,
	"controller/sandbox/remote":             3, // keeps its files on this host as local does
	"controller/sandbox/docker":             4, // a container for each sandbox, in which remote makes it
	"controller/vmimage":                    2, // what virtual machines boot from; starts none
	"controller/sandbox/vm":                 4, // a virtual machine for each sandbox, in which remote makes it
	"controller/sandbox/openshell/gateways": 3, // knows the files of OpenShell's program, and no sandbox
	"controller/sandbox/openshell/program":  3, // starts OpenShell's program; knows no sandbox of ours
	"controller/sandbox/openshell":          4, // a sandbox of OpenShell for each, in which remote makes it
	"internal/openshellpb":                  0, // messages of another project
	"internal/openshelldouble":              2, // stands for OpenShell in tests; knows nothing of the backend
	"controller/sandbox/blaxel":             4, // a machine at Blaxel for each sandbox, in which remote makes it
	"internal/blaxeldouble":                 2, // stands for Blaxel in tests; knows nothing of the backend
	"controller/sandbox/kubernetes":         4, // a pod for each sandbox, in which remote makes it
	"controller/sandbox/sandboxtest":        3, // what every backend must pass; reads audit logs
	"controller/sandbox/host":               1,
	"controller/git":                        2, // runs git of the host
	"controller/record":                     3,
	"controller/attach":                     3, // finds sandboxes in the records
	"controller/provider":                   2,
	"controller/tools":                      3, // tools of a sandbox, for agents outside; knows no run
	"controller/agenthost":                  3, // an agent's program on this machine, with the tools of its sandbox; knows no run
	"controller/servers":                    3, // the MCP servers of a harness; knows no run
	"controller/bootstrap":                  3, // sends the files of a commit
	"controller/extract":                    2,
	"controller/runtime":                    2,
	"supervisor/launch":                     2,
	"supervisor/netns":                      2, // the network of a session; the proxy serves it
	"supervisor/notify":                     2,
	"supervisor/notify/engine":              1, // what stops calls and what decides them know it
	"supervisor/notify/tracer":              2, // the other engine; knows no rules
	"supervisor/notify/listener":            2, // one engine; knows no rules
	"supervisor/audit":                      2,
	"supervisor/imageroot":                  2, // makes the root in which the supervisor then starts
	"supervisor/cgroup":                     2,
	"supervisor/reasons":                    2, // knows events and processes, not what decided
	"supervisor/approve":                    2, // who is asked is nothing to those that ask: they know wire.Question only
	"supervisor/egress":                     2, // the way out of a session's network; listeners come from above
	"supervisor/listing":                    1, // compares lists of files; knows no session
	"supervisor/fileserver":                 3, // starts and controls the process; package fuse is what it runs
	"supervisor/view":                       3, // what commands see; it makes configurations for launch
	"supervisor/streams":                    3, // of one command; the session init opens its terminal
	"supervisor/probe":                      3, // supervisor opens sessions by what it found
	"supervisor":                            4,
	"controller":                            4,
	"controller/telemetry":                  5, // exports runs; a run knows only that somebody follows it
	"controller/batch":                      5, // many runs; a run knows nothing of it
	"controller/report":                     5, // describes runs and batches; the command is beside it
	"controller/boxes":                      5, // sandboxes for programs, by a protocol; the command is beside it
	"supervisor/tally":                      4, // reads audit logs for counts; knows no session
	"supervisor/host":                       5, // serves sessions, lists them and describes the machine
	"supervisor/place":                      6, // makes sandboxes for controllers elsewhere, and serves one
	"supervisor/guest":                      6, // makes a virtual machine, in which place then makes the sandbox
	"cmd/agentsh/asking":                    3, // a person's answers; knows no session
	"cmd/agentsh/failure":                   0, // how a command line ends
	"cmd/agentsh/discovery":                 5, // sessions and what explains them find one policy
	"cmd/agentsh/policycmd":                 6, // the commands of a policy's author
	"cmd/agentsh/projectcmd":                6, // what a person decides about a project
	"cmd/agentsh/mcpcmd":                    6, // the commands of the filter of MCP servers
	"cmd/agentsh":                           7,
	"cmd/agentctl/output":                   5, // what commands print; knows no flags
	"cmd/agentctl/settings":                 6, // flags and configuration that several commands have
	"cmd/agentctl/batchcmd":                 7,
	"cmd/agentctl/sandboxcmd":               7,
	"cmd/agentctl/mcpcmd":                   7,
	"cmd/agentctl/uicmd":                    7,
	"cmd/agentctl":                          8,
	"test/evasions/policy":                  0, // scripts that policy probe carries
	"test/evasions/controller":              5, // lets the corpus attack packages of the controller
	"test/suites/judge":                     0, // compares what other people's suites print
	"packaging/containers":                  0, // profiles that packages carry, and backends send
	"packaging/release":                     4, // a tool of the build
	"sandboxes":                             0, // for programs of others: it starts agentctl and knows nothing of this module
	"":                                      0,
}

// beside lists the imports allowed within one rank: a leaf below its owner.
var beside = map[string][]string{
	"policy":                   {"policy/glob", "policy/env", "internal/wire"},
	"policy/env":               {"policy/glob"},
	"policy/syntax":            {"policy", "policy/glob", "policy/env", "internal/strictyaml"},
	"internal/channel":         {"internal/tarfs"},
	"fuse":                     {"internal/trash", "internal/snapshot"},
	"fuse/follow":              {"fuse/tree", "fuse/watch"},
	"internal/snapshot":        {"internal/trash"},
	"seccomp/target":           {"seccomp"},
	"supervisor/notify/engine": {"seccomp", "seccomp/target"},
	"supervisor/netns":         {"supervisor/egress", "supervisor/launch", "supervisor/notify"},
	"controller/report":        {"controller/batch"},
	"cmd/agentctl/uicmd":       {"cmd/agentctl/sandboxcmd"},
	"supervisor/guest":         {"supervisor/place"},
	"controller/attach":        {"controller/record"},
	"controller/agenthost":     {"controller/tools"},

	"controller/openshell": {"internal/strictyaml", "policy", "policy/glob"},
}

// owners lists the packages that may import a library.
var owners = map[string][]string{
	"github.com/seccomp/libseccomp-golang": {"seccomp"},
	"github.com/hanwen/go-fuse/v2":         {"fuse", "fuse/device"},
	"github.com/go-git/gcfg/v2/scanner":    {"internal/gitguard"},
	"github.com/go-git/gcfg/v2/token":      {"internal/gitguard"},
	// The release tool reads another project's format, which has fields it ignores.
	"gopkg.in/yaml.v3":        {"internal/strictyaml", "packaging/release"},
	"golang.org/x/crypto/ssh": {"internal/channel", "internal/openshelldouble"},
	"github.com/pkg/sftp":     {"internal/sshcommand"},
	// They call methods by name. The linker then keeps all methods: agentsh would grow by 2 MB.
	"html/template": {"controller/report"},
	"text/template": {"cmd/agentctl", "cmd/agentctl/sandboxcmd", "packaging/release"},

	"github.com/google/go-containerregistry": {"controller/image"},
	"github.com/moby/moby":                   {"controller/sandbox/docker"},
	"github.com/moby/patternmatcher":         {"controller/buildcontext"},
	"github.com/Microsoft/hcsshim":           {"controller/vmimage"},
	"github.com/ulikunitz/xz":                {"controller/vmimage"},
	"github.com/klauspost/compress":          {"controller/vmimage"},
	"go.opentelemetry.io":                    {"controller/telemetry"},
	"k8s.io":                                 {"controller/sandbox/kubernetes"},
	"google.golang.org/grpc":                 {"controller/sandbox/openshell", "internal/openshellpb", "internal/openshelldouble"},
	"github.com/coder/websocket":             {"internal/socket"},
	"github.com/mdlayher/vsock":              {"internal/socket"},
	// It would make agentsh larger than it may be: doc/decisions/0048.
	"github.com/modelcontextprotocol/go-sdk": {"controller/tools"},
	"os/exec": {
		"supervisor/launch",
		"controller/sandbox/local",
		"controller/sandbox/remote",
		"controller/sandbox/vm",
		"controller/sandbox/host",
		"controller/mcpfilter", // starts a server inside the sandbox, where the policy judges it
		"internal/testenv",
		"internal/blaxeldouble",    // what runs in its machines
		"internal/openshelldouble", // what runs in its sandboxes
		"packaging/release",
		"sandboxes", // agentctl, for programs of others
	},
}

func TestImportsOnlyGoDown(t *testing.T) {
	for file, imports := range sourceImports(t) {
		pkg := path.Dir(file)
		if pkg == "." {
			pkg = ""
		}
		rank, known := ranks[pkg]
		if !known {
			t.Errorf("%s: package %s has no layer: add it to the table and say why", file, pkg)
			continue
		}
		for _, imported := range imports {
			checkImport(t, file, pkg, rank, imported)
		}
	}
}

func checkImport(t *testing.T, file, pkg string, rank int, imported string) {
	t.Helper()
	for library, allowed := range owners {
		if (imported == library || strings.HasPrefix(imported, library+"/")) && !contains(allowed, pkg) {
			t.Errorf("%s: %s is imported only in %s", file, library, strings.Join(allowed, ", "))
		}
	}
	own, ok := strings.CutPrefix(imported, "agentsh/")
	if !ok {
		return
	}
	if ranks[own] < rank || contains(beside[pkg], own) {
		return
	}
	t.Errorf("%s: %s (layer %d) imports %s (layer %d)", file, pkg, rank, own, ranks[own])
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// sourceImports returns the imports of every non-test Go file of the module.
func sourceImports(t *testing.T) map[string][]string {
	t.Helper()
	imports := map[string][]string{}
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != "." && skipDir(name, d.Name()) {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		imports[name] = nil
		for _, i := range f.Imports {
			p, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			imports[name] = append(imports[name], p)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return imports
}

// skipDir reports directories that hold no packages of the product.
func skipDir(name, base string) bool {
	return strings.HasPrefix(base, ".") || base == "testdata" || name == "examples" || name == "bin" || name == "out" || name == "bench"
}

// callers lists the files that may call a function that must have one way in.
var callers = map[string][]string{
	"env.Build": {
		"supervisor/env.go",
		"cmd/agentsh/policycmd/env.go",
		"policy/policytest/run.go",
	}, // the last two explain, they start nothing
	"launch.NewInit": {"supervisor/open.go"},
	"seccomp.NewListener": {
		"supervisor/engine.go",
		"supervisor/launch/prober.go",
	}, // the second answers a call of its own process
	"os.StartProcess":  {},
	"syscall.ForkExec": {"controller/sandbox/host/guard.go"}, // the guard of a host command starts it
	"syscall.Exec": {
		"supervisor/imageroot/imageroot.go",
		"internal/shim/packager.go",
		"cmd/agentsh/mcp.go",
	}, // the supervisor itself, after it has entered an image; a shell for the script of a package, outside of sessions; agentctl
}

func TestEachVerbHasOneEntryPoint(t *testing.T) {
	for file := range sourceImports(t) {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			x, ok := s.X.(*ast.Ident)
			if !ok {
				return true
			}
			if allowed, one := callers[x.Name+"."+s.Sel.Name]; one && !contains(allowed, file) {
				t.Errorf("%s uses %s.%s: only %s may", file, x.Name, s.Sel.Name, strings.Join(allowed, ", "))
			}
			return true
		})
	}
}
