package supervisor

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"agentsh/supervisor/notify"
)

// buildIdentities remembers the files that the policy denies, as the session's
// first process sees them, so that copies and links of them are recognised.
func (s *Session) buildIdentities() error {
	name := s.rootName()
	root, err := os.OpenFile(name, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return fmt.Errorf("identities of denied programs: %w", err)
	}
	s.root = root
	s.known, err = notify.BuildIdentities(s.cfg.Policy.DeniedPrograms(), notify.Root{Dir: root, Path: strings.Split(s.cfg.Path, ":")})
	return err
}

// nestedInject are the injected variables that every program gets back at its
// execve: the operator's, and those of the policy that are enforced there.
func (s *Session) nestedInject() []string {
	values := map[string]string{}
	maps.Copy(values, s.injected(s.cfg.Inject))
	nested := s.cfg.Policy.EnvNested()
	for name, value := range s.injected(s.cfg.Policy.EnvInject()) {
		if slices.Contains(nested, name) {
			values[name] = value
		} else {
			delete(values, name)
		}
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(values)) {
		out = append(out, name+"="+values[name])
	}
	return out
}
