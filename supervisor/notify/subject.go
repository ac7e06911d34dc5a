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

// subject is what an execve would run: the file named, the interpreters that a
// script goes through, and the program that a dynamic loader is given.
type subject struct {
	called     string // the path as the kernel names it to an interpreter
	argv       []string
	files      []*target.Handle // the file named, then its interpreters
	firstBytes [][]byte         // what each begins with
	prefix     []string         // what the kernel puts before argv[1:] for a script
	loader     bool             // the program is the dynamic loader
	payload    *target.Handle   // what that runs; nil: nothing
	holds      bool             // what is opened by its name later is held
	named      []named
	memory     *copyBudget
	// nodeOptions says that node gets options by its environment.
	nodeOptions bool
	request     policy.CommandRequest
}

// Identify tells what a file is besides its path. See [Identities.Of].
type Identify func(*target.Handle) (Likeness, error)

// Describe returns the request that an execve of l with argv makes when t calls
// it: its Program, Chain, Argv and Cwd. The error holds the errno that the
// kernel would give where it would give one.
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

// errNoProgram says that the kernel would refuse the file for what it is.
var errNoProgram = errors.New("not a program")

// find opens the file and, while it is a script, its interpreter.
func (s *subject) find(t *target.Target, l target.Lookup) error {
	s.called = calledName(l.Dir, l.Path)
	called := s.called
	for range policy.MaxInterpreters + 1 {
		h, err := t.Resolve(l)
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
		if s.holds {
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

// copyScript holds the last of the files, which is a script, and reads the first
// line of what is held.
func (s *subject) copyScript(t *target.Target, l target.Lookup, called string) (*policy.Script, error) {
	last := len(s.files) - 1
	h, err := s.hold(t, l, s.files[last], named{called: called, script: true})
	s.files[last] = h
	if err != nil {
		return nil, err
	}
	if s.firstBytes[last], err = h.Head(policy.ShebangSize); err != nil {
		return nil, err
	}
	script, err := policy.Shebang(s.firstBytes[last])
	if err == nil && script == nil {
		err = errors.New("it was changed while it was judged")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w: %w", errNoProgram, err, unix.ENOEXEC)
	}
	return script, nil
}

// interpret puts an interpreter with its argument before the name of its script.
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

// calledName is the name that the kernel gives to an interpreter. See
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
	var like Likeness
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
		return s.addPayload(t, identify)
	}
	return nil
}

// nameArgs gives the last interpreter the argument vector it gets.
func (s *subject) nameArgs() {
	if n := len(s.request.Chain); n > 0 {
		s.request.Chain[n-1].Args = s.finalArgv()
	}
}

// finalArgv is the argument vector that the last of the files gets.
func (s *subject) finalArgv() []string {
	if len(s.prefix) == 0 {
		return s.argv
	}
	return slices.Concat(s.prefix, s.argv[1:])
}

// addPayload adds the program that a dynamic loader runs to the request. The
// kernel executes the loader only, so this is where that program is decided.
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
	if s.holds {
		if h, err = s.hold(t, l, h, named{called: payload.Program}); err != nil {
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
func program(h *target.Handle, identify Identify) (policy.Program, Likeness, error) {
	if h.Path == "" {
		return policy.Program{}, Likeness{}, fmt.Errorf(
			"the program has no name in the sandbox: a memory file or one that was deleted: %w",
			unix.EACCES,
		)
	}
	p := policy.Program{Called: h.Path, Path: h.Path}
	if identify == nil {
		return p, Likeness{}, nil
	}
	like, err := identify(h)
	p.Names, p.Same, p.MultiCall = like.Names, like.Same, like.MultiCall
	return p, like, err
}

// payloadPath is the program that the dynamic loader runs; empty: none.
func (s *subject) payloadPath() string {
	if s.payload == nil {
		return ""
	}
	return s.payload.Path
}

// covered are the files whose content decides what runs, as they were decided.
func (s *subject) covered() []*target.Handle {
	out := slices.Clone(s.files)
	if s.payload != nil {
		out = append(out, s.payload)
	}
	for i := range s.named {
		if s.named[i].own {
			out = append(out, s.named[i].held)
		}
	}
	return out
}

// originals are the files of covered as commands may have changed them since.
func (s *subject) originals() []*target.Handle {
	out := s.covered()
	for i := range out {
		for j := range s.named {
			if s.named[j].held == out[i] {
				out[i] = s.named[j].original
			}
		}
	}
	return out
}
