// Package layout names the paths that both programs agree on: those of an
// installation, of a sandbox, and of the state directory of a user. It reads
// nothing from the disk.
package layout

import (
	"path"
	"slices"
	"strings"
)

// HostName is the host name inside of a session, the result of gethostname(2).
const HostName = "sandbox"

// Paths of an installation. The packages make them.
const (
	Library       = "/usr/lib/agentsh"           // programs and scripts that sessions need
	Program       = Library + "/agentsh"         // the supervisor, also where a sandbox shows it
	StartupScript = Library + "/bash_startup.sh" // the usual value of BASH_ENV
	CABundle      = Library + "/ca-bundle.pem"   // inside a session only: the authorities it trusts
	GitConfig     = Library + "/gitconfig"       // inside a session only: git's settings of the system, and the operator's identity
	Refusals      = Library + "/refusals"        // inside a session with Program only: what no tool call was told
	Config        = "/etc/agentsh/config.yaml"   // the operator's configuration
	Policies      = "/etc/agentsh/policies"      // the policies of the packages
	MachinePolicy = "/etc/agentsh/policy.yaml"   // the policy where the configuration names none

	ContainerProfiles = "/usr/share/agentsh/containers" // seccomp and AppArmor profiles of containers with whole sessions
)

// Authorities are the files in which machines have the authorities they trust, in
// PEM. The first one that exists counts. See crypto/x509, root_linux.go.
var Authorities = []string{
	"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
	"/etc/pki/tls/cacert.pem", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem",
}

// Paths of a sandbox of agentctl.
const (
	Sandbox       = "/sandbox"
	Home          = Sandbox + "/home"          // HOME of the agent
	ConfigDir     = Sandbox + "/claude-config" // agents, skills and plugins
	Workspace     = Sandbox + "/workspace"     // the repository lies below it
	EnvFile       = Workspace + "/.env"
	EnvDir        = Workspace + "/.env.d" // read by name, [GeneratedName] last
	GeneratedEnv  = EnvDir + "/" + GeneratedName
	RuntimeDir    = Workspace + "/.claude"     // settings and hooks of the agent program
	HookLog       = ConfigDir + "/hooks.log"   // what the hooks did
	HookState     = ConfigDir + "/hooks.state" // how much of Refusals they have read
	AgentInput    = Workspace + "/agent-input" // what the harness gives the agent to read
	Output        = Workspace + "/output"      // what the agent leaves for the harness
	Feedback      = Workspace + "/feedback"    // messages of validators
	OutputSchema  = Workspace + "/.fullsend/output-schema.json"
	Export        = "/.agentsh-export" // of the files channel alone: what a sandbox elsewhere leaves
	ExportedTrash = Export + "/trash"
)

// GeneratedName is the file of [EnvDir] that holds env.sandbox of the harness.
const GeneratedName = "generated.env"

// RunPolicy and OwnPolicy name in positions the rules that a run of agentctl, and agentsh, put before a policy. There
// are no such files.
const (
	RunPolicy = "agentctl-run.yaml"
	OwnPolicy = "agentsh"
)

// BeforePolicy reports whether a source of a policy is rules that were put before it.
func BeforePolicy(source string) bool { return source == RunPolicy || source == OwnPolicy }

// ProjectPolicy is the policy of a project, below its root.
const ProjectPolicy = ".agentsh/policy.yaml"

// CommandHome is HOME in a session that agentsh exec or agentsh shell opens.
const CommandHome = "/home/sandbox"

// reserved are paths of a sandbox that a harness may not deliver to: files, and
// directories with everything below them.
var reserved = []string{
	EnvFile, GeneratedEnv, RuntimeDir, ConfigDir, AgentInput,
	Workspace + "/bin", Sandbox + "/bin", Workspace + "/.agentsh", Sandbox + "/.agentsh",
}

// Reserved reports whether a file delivered to a clean absolute path would
// replace a reserved path, lie below one, or lie in its way.
func Reserved(name string) bool {
	return slices.ContainsFunc(reserved, func(r string) bool {
		return name == r || strings.HasPrefix(name, r+"/") || strings.HasPrefix(r, name+"/")
	})
}

// ReservedName reports whether a repository cannot have a name in [Workspace].
func ReservedName(name string) bool {
	return slices.Contains([]string{"bin", path.Base(AgentInput), path.Base(Output), path.Base(Feedback)}, name)
}

// Paths of the initramfs of a virtual machine. Process 1 removes them.
const (
	MachineFile    = "/machine.json" // describes the machine, with its keys
	MachineModules = "/modules"      // modules of the kernel, in the order of their names
	MachineProgram = "/agentsh"      // process 1
)
