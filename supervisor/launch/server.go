package launch

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"agentsh/internal/selfexec"
)

// Donation is a descriptor for a server. The server finds it by its name.
type Donation struct {
	Name string
	File *os.File
}

// Server is a running server process of this program.
type Server struct {
	name  string
	child *child
}

// donated is the message in the first descriptor of a server: the names of the others.
type donated struct {
	Names []string `json:"names"`
}

// donationsFD is the descriptor with the names, in a server that is not confined.
const donationsFD = 3

// StartServer executes this program again under another name, such as "agentsh-fuse", and
// passes it descriptors. The server inherits nothing else: its environment is empty, and
// it ends with the supervisor. The caller closes the files.
func StartServer(name string, extra []Donation) (*Server, error) {
	return startServer(name, extra, nil, serverAttributes())
}

// StartConfined is like [StartServer] for a process with a [Confinement].
func StartConfined(name string, extra []Donation, c Confinement) (*Server, error) {
	spec, ruleset, err := c.files()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer spec.Close()
	defer ruleset.Close()
	return startServer(name, extra, []*os.File{spec, ruleset}, serverAttributes())
}

func startServer(name string, extra []Donation, first []*os.File, attributes *syscall.SysProcAttr) (*Server, error) {
	return startProgram(&exec.Cmd{
		Args: []string{name}, Env: serverEnvironment(), Dir: "/", Stderr: os.Stderr, SysProcAttr: attributes, ExtraFiles: first,
	}, extra)
}

// serverEnvironment saves a server the search for its control group, in which the Go runtime
// finds how many processors it may use: they are those of this process.
func serverEnvironment() []string {
	return append(selfexec.Environment(), fmt.Sprintf("GOMAXPROCS=%d", runtime.GOMAXPROCS(0)))
}

// StartDetached executes a program (empty: this one) with an argument vector and passes it
// descriptors, as StartServer does. The process has a session of its own and outlives this
// one. output is its standard output and error. Its environment has only TMPDIR and
// XDG_RUNTIME_DIR.
func StartDetached(program string, argv []string, output *os.File, extra []Donation) (*Server, error) {
	environment := []string{}
	for _, name := range []string{"TMPDIR", "XDG_RUNTIME_DIR"} {
		if dir, set := os.LookupEnv(name); set {
			environment = append(environment, name+"="+dir)
		}
	}
	return startProgram(&exec.Cmd{
		Path: program, Args: argv, Env: environment, Dir: "/", Stdout: output, Stderr: output, SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}, extra)
}

// startProgram executes this program again. The files of cmd come before the
// donations.
func startProgram(cmd *exec.Cmd, extra []Donation) (*Server, error) {
	name := cmd.Args[0]
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer r.Close()
	defer w.Close()
	var d donated
	files := slices.Concat(cmd.ExtraFiles, []*os.File{r})
	for _, x := range extra {
		d.Names = append(d.Names, x.Name)
		files = append(files, x.File)
	}
	cmd.Path, cmd.ExtraFiles = cmp.Or(cmd.Path, "/proc/self/exe"), files
	b, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	const pipeSize = 64 << 10
	if len(b) > pipeSize {
		return nil, fmt.Errorf("start %s: %d descriptors are too many", name, len(extra))
	}
	if _, err := w.Write(b); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	c, err := startChild(cmd)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return &Server{name: name, child: c}, nil
}

// Donations returns the descriptors that a server was started with, by name. A server
// calls it once, before anything else.
func Donations() (map[string]*os.File, error) {
	first := firstDonation()
	f := os.NewFile(uintptr(first), "donations")
	if f == nil {
		return nil, fmt.Errorf("read donations: no descriptor %d", first)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 64<<10))
	if err != nil {
		return nil, fmt.Errorf("read donations: %w", err)
	}
	var d donated
	if err := json.Unmarshal(b, &d); err != nil {
		return nil, fmt.Errorf("read donations: %w", err)
	}
	files := map[string]*os.File{}
	for n, name := range d.Names {
		if files[name] != nil {
			return nil, fmt.Errorf("read donations: %q is given twice", name)
		}
		fd := first + 1 + n
		unix.CloseOnExec(fd)
		files[name] = os.NewFile(uintptr(fd), name)
	}
	return files, nil
}

// PID is the server's process id.
func (s *Server) PID() int { return s.child.pid }

// Dead is closed when the server has ended.
func (s *Server) Dead() <-chan struct{} { return s.child.done }

// Err waits for the end of the server and describes it.
func (s *Server) Err() error {
	return fmt.Errorf("%s ended: %s", s.name, s.child.exitText())
}

// Stop waits until the server ends, as it does when its control socket closes. It kills
// the server when ctx is done.
func (s *Server) Stop(ctx context.Context) {
	select {
	case <-s.child.done:
	case <-ctx.Done():
		s.Kill()
	}
}

// Kill ends the server and waits for it.
func (s *Server) Kill() {
	s.child.kill()
	<-s.child.done
}

// serverAttributes make a server end with the thread that started it. That thread lives
// as long as the server.
func serverAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Setsid: true}
}
