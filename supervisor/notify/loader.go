package notify

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"agentsh/policy"
	"agentsh/seccomp/target"
)

// loaderOptions are the options of the dynamic loaders of glibc and musl, with
// the number of words that each takes. See ld.so(8).
var loaderOptions = map[string]int{
	"--argv0": 1, "--audit": 1, "--glibc-hwcaps-mask": 1, "--glibc-hwcaps-prepend": 1, "--inhibit-rpath": 1,
	"--library-path": 1, "--preload": 1,
	"--help": 0, "--inhibit-cache": 0, "--list": 0, "--list-diagnostics": 0, "--list-tunables": 0, "--verify": 0, "--version": 0,
}

// payload returns the index in argv of the program that a dynamic loader is to
// run; 0: none. An option that is not known could hide it, so it is an error.
func payload(argv []string) (int, error) {
	for i := 1; i < len(argv); i++ {
		option, _, joined := strings.Cut(argv[i], "=")
		words, known := loaderOptions[option]
		switch {
		case argv[i] == "--":
			return programAt(argv, i+1)
		case !strings.HasPrefix(argv[i], "-"):
			return programAt(argv, i)
		case !known || joined && words == 0:
			return 0, fmt.Errorf("option %q of the dynamic loader is not known", argv[i])
		case !joined:
			i += words
		}
	}
	return 0, nil
}

func programAt(argv []string, i int) (int, error) {
	if i >= len(argv) {
		return 0, nil
	}
	if !strings.Contains(argv[i], "/") {
		return 0, fmt.Errorf("the dynamic loader would look for %q among libraries", argv[i])
	}
	return i, nil
}

// addPayload adds the program that a dynamic loader runs to the request. The
// kernel executes the loader only, so this is where that program is judged.
func (w *worker) addPayload(t *target.Target, a *attempt, argv []string) error {
	i, err := payload(argv)
	if err != nil || i == 0 {
		return err
	}
	h, err := t.Resolve(target.Lookup{Dir: unix.AT_FDCWD, Path: argv[i]})
	if err != nil {
		return fmt.Errorf("the program of the dynamic loader: %w", err)
	}
	defer h.Close()
	program, like, err := w.program(h)
	if err != nil {
		return err
	}
	if like.Loader {
		return errors.New("the dynamic loader is to run itself")
	}
	program.Called, program.Args = argv[i], argv[i:]
	a.request.Chain = append(a.request.Chain, program)
	return nil
}

// program describes a file for the policy.
func (w *worker) program(h *target.Handle) (policy.Program, Likeness, error) {
	if h.Path == "" {
		return policy.Program{}, Likeness{}, fmt.Errorf("the program has no name in the sandbox: a memory file or one that was deleted: %w", unix.EACCES)
	}
	p := policy.Program{Called: h.Path, Path: h.Path}
	if w.loop.cfg.Identify == nil {
		return p, Likeness{}, nil
	}
	like, err := w.loop.cfg.Identify(h)
	p.Names, p.Same = like.Names, like.Same
	return p, like, err
}
