package seccomp

import (
	"embed"
	"fmt"
	"runtime"
)

// kept has what [Plan.Compile] returns for the plans that are the same in every session, by name
// and architecture. A start would wait for libseccomp otherwise. The test that compares them with
// their plans writes them: go test -run TestKeptPrograms ./seccomp -update.
//
//go:embed programs
var kept embed.FS

// The names of kept programs.
const (
	keptServer       = "server"
	keptSelf         = "self"
	keptSelfPrograms = "self-programs"
)

// ServerProgram returns the compiled [ServerPlan].
func ServerProgram() ([]byte, error) { return keptProgram(keptServer, runtime.GOARCH) }

// SelfProgram returns the compiled [SelfPlan].
func SelfProgram(programs bool) ([]byte, error) {
	if programs {
		return keptProgram(keptSelfPrograms, runtime.GOARCH)
	}
	return keptProgram(keptSelf, runtime.GOARCH)
}

func keptProgram(name, arch string) ([]byte, error) {
	if _, ok := arches[arch]; !ok {
		return nil, fmt.Errorf("filter of this program: architecture %q is not amd64 or arm64", arch)
	}
	return kept.ReadFile(keptFile(name, arch))
}

func keptFile(name, arch string) string { return "programs/" + name + "." + arch }
