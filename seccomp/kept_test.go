package seccomp

import (
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "write the programs that are kept")

// A kept program decides every call as its plan says, whatever version of libseccomp made it.
func TestKeptProgramsDecideAsPlanned(t *testing.T) {
	for arch := range arches {
		for name, p := range map[string]Plan{keptServer: ServerPlan(), keptSelf: SelfPlan(false), keptSelfPrograms: SelfPlan(true)} {
			if *update {
				program, err := p.Compile(arch)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(keptFile(name, arch), program, 0o644); err != nil {
					t.Fatal(err)
				}
				continue
			}
			program, err := keptProgram(name, arch)
			if err != nil {
				t.Fatalf("write it with -update: %v", err)
			}
			decidesAsPlanned(t, arch, "kept "+name, p, program)
			killsOthers(t, arch, program)
		}
	}
}
