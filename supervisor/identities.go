package supervisor

import "agentsh/seccomp/target"

func (s *Session) identities() (func(*target.Handle) ([]string, error), error) {
	return func(*target.Handle) ([]string, error) { return nil, nil }, nil
}

func (s *Session) nestedInject() []string { return nil }
