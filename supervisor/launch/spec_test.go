package launch

import (
	"context"
	"errors"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
	"agentsh/seccomp"
)

// smallConfig is a session without programs.
func smallConfig(t *testing.T) *Config {
	t.Helper()
	filter, err := seccomp.DefaultPlan(seccomp.PlanOptions{}).Compile(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	return &Config{
		Mounts: []Mount{{Kind: Dev, Target: "/dev"}, {Kind: Symlink, Source: "a", Target: "/b"}, {Kind: File, Target: "/f", Data: []byte("x")}},
		User:   User{UID: 1000, GID: 1000}, Hostname: "h", Filter: filter, ReadOnly: []string{"/"},
		Limits: []Rlimit{{unix.RLIMIT_NOFILE, 64, 64}},
	}
}

// try starts an init with a setup as it is.
func try(t *testing.T, c *Config, b []byte) error {
	t.Helper()
	s := &spec{b: b}
	f, err := s.file()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	i, err := spawnInit(c)
	if err != nil {
		t.Fatal(err)
	}
	defer i.abandon()
	return i.handshake(f, nil, c)
}

func TestASetupThatIsCutShortIsRefused(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif)
	c := smallConfig(t)
	whole := c.setup().b
	if err := try(t, c, whole); err != nil {
		t.Fatal(err)
	}
	filter := len(c.Filter)
	for cut := 12; cut < len(whole); cut++ {
		if cut%7 != 0 && (cut < len(whole)-filter || cut > len(whole)-40) {
			continue
		}
		if cut > len(whole)-filter && cut < len(whole)-60 && cut%501 != 0 {
			continue // inside the filter
		}
		if err := try(t, c, append([]byte(nil), whole[:cut]...)); err == nil {
			t.Errorf("%d of %d bytes were taken", cut, len(whole))
		}
	}
	if err := try(t, c, append(append([]byte(nil), whole...), 0)); err == nil {
		t.Error("a byte too many was taken")
	}
}

func TestASetupWithAWrongByteNeverHangs(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif)
	c := smallConfig(t)
	whole := c.setup().b
	refused := 0
	for at := 12; at < 12+(len(whole)-len(c.Filter)-12); at += 11 {
		b := append([]byte(nil), whole...)
		b[at] ^= 0xff
		if try(t, c, b) != nil {
			refused++
		}
	}
	if refused == 0 {
		t.Error("no wrong byte was noticed")
	}
}

func TestACommandThatIsCutShortIsRefused(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif)
	i, err := NewInit(context.Background(), *smallConfig(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer i.Listener().Close()
	defer i.Close()
	c := &Command{Path: "/b", Argv: []string{"b", "c"}, Env: []string{"A=b"}, Dir: "/", Limits: []Rlimit{{unix.RLIMIT_NOFILE, 9, 9}}}
	whole := c.spec().b
	cases := [][]byte{append(append([]byte(nil), whole...), 0)}
	for cut := 12; cut < len(whole); cut++ {
		cases = append(cases, append([]byte(nil), whole[:cut]...))
	}
	mark := *c
	mark.Limits = []Rlimit{{unix.RLIMIT_RTTIME, 1, 1}}
	cases = append(cases, mark.spec().b)
	for _, b := range cases {
		f, err := (&spec{b: b}).file()
		if err != nil {
			t.Fatal(err)
		}
		if err := startRaw(i, c, f); !errors.Is(err, unix.EBADMSG) {
			t.Errorf("%d of %d bytes: %v", len(b), len(whole), err)
		}
		f.Close()
	}
}

// startRaw is Start with a specification as it is.
func startRaw(i *Init, c *Command, spec *os.File) error {
	ours, theirs, err := pair()
	if err != nil {
		return err
	}
	defer ours.Close()
	if err := passCredentials(ours); err != nil {
		return err
	}
	p := i.commands.add(i)
	err = i.request(p, c, spec, theirs)
	theirs.Close()
	if err != nil {
		return err
	}
	err = p.follow(ours, nil)
	<-p.TreeEmpty()
	return err
}

// Nothing of the supervisor keeps the init of a session without namespaces from learning
// that the session has ended.
func TestAnInitWithoutNamespacesEndsByItself(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif)
	c := smallConfig(t)
	c.NoNamespaces, c.Mounts, c.Hostname, c.ReadOnly = true, nil, "", nil
	i, err := NewInit(context.Background(), *c, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer i.Listener().Close()
	if err := i.Close(); err != nil {
		t.Fatal(err)
	}
	if i.child.err != nil {
		t.Errorf("the init was ended: %v", i.child.err)
	}
}
