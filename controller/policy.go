package controller

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"agentsh/internal/wire"
	"agentsh/policy"
)

// maxPolicyFile bounds one policy file, in bytes.
const maxPolicyFile = 4 << 20

// loadPolicy reads the policy at name with what it extends, and checks it: a
// policy that the supervisor would refuse is refused before a sandbox exists.
func loadPolicy(name string, vars map[string]string) ([]wire.PolicySource, error) {
	name = shortName(name)
	data, err := readBounded(name, maxPolicyFile)
	if err != nil {
		return nil, badConfig("", "policy: %w", err)
	}
	p, err := policy.Load(policy.Source{Name: name, Data: data}, policy.Options{
		Vars:     vars,
		ReadFile: func(name string) ([]byte, error) { return readBounded(name, maxPolicyFile) },
	})
	if err != nil {
		return nil, badConfig("run 'agentsh policy check "+name+"'", "policy:\n%w", err)
	}
	var out []wire.PolicySource
	for _, s := range p.Sources() {
		out = append(out, wire.PolicySource{Name: s.Name, Data: s.Data})
	}
	return out, nil
}

// shortName is name relative to the working directory when it lies below it:
// it is shown with every refusal.
func shortName(name string) string {
	here, err := os.Getwd()
	if err != nil {
		return name
	}
	rel, err := filepath.Rel(here, name)
	if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
		return name
	}
	return rel
}

// readBounded reads a regular file of at most limit bytes.
func readBounded(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("%s is not a regular file", name), err)
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s has more than %d bytes", name, limit)
	}
	return data, nil
}
