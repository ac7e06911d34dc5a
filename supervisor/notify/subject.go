package notify

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"agentsh/policy"
	"agentsh/seccomp/target"
)

// subject is what an execve would run: the file that it names, the interpreters of a
// script, and the program that a dynamic loader is given.
type subject struct {
	called     string // the path as the kernel passes it to an interpreter
	argv       []string
	files      []*target.Handle // the file that is named, then its interpreters
	firstBytes [][]byte         // of each of files
	prefix     []string         // what the kernel puts before argv[1:] for a script
	loader     bool             // the program is the dynamic loader
	payload    *target.Handle   // the program that the loader runs; nil: none
	copies     bool             // files that are opened by name later are copied
	direct     bool             // nothing may wait: see [Loop.directly]
	named      []named
	budget     *copyBudget
	// nodeOptions says that the environment has options for node.
	nodeOptions bool
	request     policy.CommandRequest
}

// Identify returns what is known about a file besides its path. See [Identities.Of].
type Identify func(*target.Handle) (FileIdentity, error)

// Describe returns the request for an execve of l with argv by the thread t: its
// Program, Chain, Argv and Cwd. If the kernel would refuse the call, the error wraps
// its errno.
func Describe(t *target.Target, l target.Lookup, argv []string, identify Identify) (policy.CommandRequest, error) {
	s := subject{argv: argv}
	defer s.close()
	if err := s.find(t, l); err != nil {
		return policy.CommandRequest{}, err
	}
	err := s.describe(t, identify)
	return s.request, err
}

func (s *subject) close() {
	for _, f := range s.files {
		f.Close()
	}
	for i := range s.named {
		s.named[i].close()
	}
	if s.payload != nil {
		s.payload.Close()
	}
	s.files, s.named, s.payload = nil, nil, nil
}

// errNoProgram says that the kernel would not execute a file of this kind.
var errNoProgram = errors.New("not a program")

// find opens the file and, while it is a script, its interpreter.
func (s *subject) find(t *target.Target, l target.Lookup) error {
	s.called = calledName(l.Dir, l.Path)
	called := s.called
	for range policy.MaxInterpreters + 1 {
		h, err := s.resolve(t, l)
		if err != nil {
			return err
		}
		s.files = append(s.files, h)
		if !h.Regular() || h.Stat.Mode&0o111 == 0 {
			return fmt.Errorf("%w: %w", errNoProgram, unix.EACCES)
		}
		head, err := shebangs.of(h)
		if err != nil {
			return err
		}
		s.firstBytes = append(s.firstBytes, head)
		script, err := policy.Shebang(head)
		if err != nil {
			return fmt.Errorf("%w: %w: %w", errNoProgram, err, unix.ENOEXEC)
		}
		if script == nil {
			return nil
		}
		if s.direct {
			return errWaits // a script may be copied
		}
		if s.copies {
			if script, err = s.copyScript(t, l, called); err != nil {
				return err
			}
		}
		s.interpret(script, called)
		called = script.Interpreter
		l = target.Lookup{Dir: unix.AT_FDCWD, Path: script.Interpreter}
	}
	return fmt.Errorf("more than %d interpreters: %w", policy.MaxInterpreters, unix.ELOOP)
}

func (s *subject) resolve(t *target.Target, l target.Lookup) (*target.Handle, error) {
	if !s.direct {
		return t.Resolve(l)
	}
	if h := t.ResolveCached(l, quickPrograms.has); h != nil {
		return h, nil
	}
	return nil, errWaits
}

// copyScript copies the last of the files, which is a script, and reads the first line
// of the copy.
func (s *subject) copyScript(t *target.Target, l target.Lookup, called string) (*policy.Script, error) {
	last := len(s.files) - 1
	h, err := s.copy(t, l, s.files[last], named{called: called, script: true})
	s.files[last] = h
	if err != nil {
		return nil, err
	}
	if s.firstBytes[last], err = h.Head(policy.ShebangSize); err != nil {
		return nil, err
	}
	script, err := policy.Shebang(s.firstBytes[last])
	if err == nil && script == nil {
		err = errors.New("it was changed while it was evaluated")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w: %w", errNoProgram, err, unix.ENOEXEC)
	}
	return script, nil
}

// interpret adds an interpreter and its argument before the name of the script.
func (s *subject) interpret(script *policy.Script, called string) {
	front := []string{script.Interpreter}
	if script.Argument != "" {
		front = append(front, script.Argument)
	}
	front = append(front, called)
	if len(s.prefix) > 0 {
		front = append(front, s.prefix[1:]...) // the name of the script before is there already
	}
	s.prefix = front
}

// calledName is the name of a script as the kernel passes it to the interpreter. See
// alloc_bprm in fs/exec.c.
func calledName(dir int, name string) string {
	switch {
	case dir == unix.AT_FDCWD, strings.HasPrefix(name, "/"):
		return name
	case name == "":
		return fmt.Sprintf("/dev/fd/%d", dir)
	default:
		return fmt.Sprintf("/dev/fd/%d/%s", dir, name)
	}
}

// describe makes the request for the policy from what was found.
func (s *subject) describe(t *target.Target, identify Identify) error {
	programs := make([]policy.Program, len(s.files))
	var like FileIdentity
	var err error
	for i, f := range s.files {
		if programs[i], like, err = program(f, identify); err != nil {
			return fmt.Errorf("program %q: %w", s.called, err)
		}
	}
	programs[0].Called = s.called
	s.request = policy.CommandRequest{Program: programs[0], Chain: programs[1:], Argv: s.argv, Cwd: t.Cwd()}
	s.loader = like.Loader
	s.nameArgs()
	if s.loader {
		if s.direct {
			return errWaits
		}
		return s.addPayload(t, identify)
	}
	return nil
}

// nameArgs sets the argument vector of the last interpreter in the request.
func (s *subject) nameArgs() {
	if n := len(s.request.Chain); n > 0 {
		s.request.Chain[n-1].Args = s.finalArgv()
	}
}

// finalArgv is the argument vector of the last of the files.
func (s *subject) finalArgv() []string {
	if len(s.prefix) == 0 {
		return s.argv
	}
	return slices.Concat(s.prefix, s.argv[1:])
}

// addPayload adds the program that a dynamic loader runs to the request. The kernel
// executes only the loader, so no other place evaluates that program.
func (s *subject) addPayload(t *target.Target, identify Identify) error {
	payload, err := policy.LoaderPayload(s.finalArgv())
	if err != nil {
		return fmt.Errorf("the dynamic loader: %w", err)
	}
	switch {
	case payload.Program == "":
		return nil
	case !strings.Contains(payload.Program, "/"):
		return fmt.Errorf("the dynamic loader would look for %q among libraries", payload.Program)
	}
	l := target.Lookup{Dir: unix.AT_FDCWD, Path: payload.Program}
	h, err := t.Resolve(l)
	if err != nil {
		return fmt.Errorf("the program of the dynamic loader: %w", err)
	}
	s.payload = h
	if s.copies {
		if h, err = s.copy(t, l, h, named{called: payload.Program}); err != nil {
			return err
		}
		s.payload = h
	}
	p, like, err := program(h, identify)
	if err != nil {
		return err
	}
	if like.Loader {
		return errors.New("the dynamic loader is to run itself")
	}
	p.Called, p.Args = payload.Program, payload.Argv
	s.request.Chain = append(s.request.Chain, p)
	return nil
}

// program describes a file for the policy.
func program(h *target.Handle, identify Identify) (policy.Program, FileIdentity, error) {
	if h.Path == "" {
		return policy.Program{}, FileIdentity{}, fmt.Errorf(
			"the program has no name in the sandbox: a memory file or one that was deleted: %w",
			unix.EACCES,
		)
	}
	p := policy.Program{Called: h.Path, Path: h.Path}
	if identify == nil {
		return p, FileIdentity{}, nil
	}
	like, err := identify(h)
	p.Names, p.Same, p.MultiCall = like.Names, like.Same, like.MultiCall
	return p, like, err
}

// ChainPaths are the files of the programs after the first, for an event.
func ChainPaths(chain []policy.Program) []string {
	if len(chain) == 0 {
		return nil
	}
	out := make([]string, len(chain))
	for i := range chain {
		out[i] = chain[i].Path
	}
	return out
}

// payloadPath is the path of the program that the dynamic loader runs, or empty.
func (s *subject) payloadPath() string {
	if s.payload == nil {
		return ""
	}
	return s.payload.Path
}

// covered returns the files whose content decides what runs, as they were evaluated.
func (s *subject) covered() []*target.Handle {
	out := slices.Clone(s.files)
	if s.payload != nil {
		out = append(out, s.payload)
	}
	for i := range s.named {
		if s.named[i].separate {
			out = append(out, s.named[i].content)
		}
	}
	return out
}

// originals returns the files of covered, with the original in place of each copy.
func (s *subject) originals() []*target.Handle {
	out := s.covered()
	for i := range out {
		for j := range s.named {
			if s.named[j].content == out[i] {
				out[i] = s.named[j].original
			}
		}
	}
	return out
}
