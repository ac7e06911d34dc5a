package remote

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"agentsh/internal/stdio"
	"agentsh/internal/testenv"
	"agentsh/internal/wire"
)

// shells are shells that places have. Dash reads ahead, bash does not.
func shells(t *testing.T) map[string]string {
	t.Helper()
	testenv.Need(t, testenv.Program("dash"), testenv.Program("bash"), testenv.Program("busybox"))
	return map[string]string{"dash": "dash", "bash": "bash --posix", "busybox": "busybox sh"}
}

// fakeProgram is a program that announces itself as agentsh serve --stdio does, and then
// prints its environment and its umask.
func fakeProgram(t *testing.T, text string) map[string]supervisor {
	t.Helper()
	data := []byte("#!/bin/sh\n: " + text + strings.Repeat("x", 100_000) + `
printf '\nagentsh-stdio-1 LENGTH\nHELLO'
read line
echo "$line $(umask) $*"
env
`)
	hello, err := json.Marshal(wire.PlaceHello{Version: wire.Current, Build: "fake"})
	if err != nil {
		t.Fatal(err)
	}
	data = []byte(strings.NewReplacer("LENGTH", strconv.Itoa(len(hello)), "HELLO", string(hello)).Replace(string(data)))
	path := filepath.Join(t.TempDir(), "agentsh")
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
	p, err := readSupervisor(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(data)
	if p.size != int64(len(data)) || p.digest != hex.EncodeToString(sum[:]) {
		t.Fatalf("%+v", p)
	}
	return map[string]supervisor{runtime.GOARCH: p}
}

// place is a shell with a home.
type place struct {
	t     *testing.T
	shell string
	home  string
}

// enter starts the program at the place. It returns what the program prints after a line
// was sent to it.
func (p place) enter(programs map[string]supervisor) (string, error) {
	p.t.Helper()
	c, err := Parse("exec:env -i SECRET=x PATH="+os.Getenv("PATH")+" HOME="+p.home+" "+p.shell, "")
	if err != nil {
		p.t.Fatal(err)
	}
	s, err := c.Open(context.Background())
	if err != nil {
		p.t.Fatal(err)
	}
	defer s.Kill()
	if err := enter(context.Background(), s, programs); err != nil {
		return "", explain(s, err)
	}
	if _, err := s.Write([]byte("hello\n")); err != nil {
		p.t.Fatal(err)
	}
	var out strings.Builder
	buf := make([]byte, 4096)
	for {
		n, err := s.Read(buf)
		out.Write(buf[:n])
		if err != nil {
			return out.String(), nil
		}
	}
}

func (p place) programs() []string {
	p.t.Helper()
	names, err := filepath.Glob(p.home + "/.cache/agentsh/*")
	if err != nil {
		p.t.Fatal(err)
	}
	return names
}

func TestTheProgramIsSentWhereItIsMissingOrDiffers(t *testing.T) {
	for name, shell := range shells(t) {
		t.Run(name, func(t *testing.T) {
			p := place{t, shell, t.TempDir()}
			programs := fakeProgram(t, "one")
			file := filepath.Join(p.home, ".cache/agentsh", "agentsh-"+programs[runtime.GOARCH].digest)
			steps := []struct {
				name    string
				prepare func() error
			}{
				{"it is missing", func() error { return nil }},
				{"it is there", func() error { return nil }},
				{"it is another", func() error { return os.WriteFile(file, []byte("#!/bin/sh\necho other\n"), 0o755) }},
				{"it is a link", func() error {
					return errors.Join(os.Rename(file, file+".moved"), os.Symlink(file+".moved", file))
				}},
			}
			for _, step := range steps {
				if err := step.prepare(); err != nil {
					t.Fatal(err)
				}
				out, err := p.enter(programs)
				if err != nil || !strings.HasPrefix(out, "hello 0022 serve --stdio\n") {
					t.Fatalf("%s: %q, %v", step.name, out, err)
				}
				if strings.Contains(out, "SECRET") {
					t.Errorf("the environment of the place is passed on: %s", out)
				}
			}
			info, err := os.Lstat(file)
			if err != nil || info.Mode() != 0o755 {
				t.Errorf("%v, %v", info.Mode(), err)
			}
			before := info.ModTime()
			if _, err := p.enter(fakeProgram(t, "two")); err != nil {
				t.Error(err)
			}
			if info, err = os.Lstat(file); err != nil || !info.ModTime().Equal(before) {
				t.Errorf("another program changed it: %v", err)
			}
			dir, err := os.Stat(filepath.Dir(file))
			if err != nil || dir.Mode().Perm() != 0o700 {
				t.Errorf("%v, %v", dir.Mode(), err)
			}
			for _, name := range p.programs() {
				if strings.Contains(name, "new-") {
					t.Errorf("%s is left", name)
				}
			}
		})
	}
}

func TestAProgramThatWasNotUsedForAMonthIsRemoved(t *testing.T) {
	p := place{t, "sh", t.TempDir()}
	programs := fakeProgram(t, "one")
	old := filepath.Join(p.home, ".cache/agentsh/agentsh-old")
	used := filepath.Join(p.home, ".cache/agentsh", "agentsh-"+programs[runtime.GOARCH].digest)
	if _, err := p.enter(programs); err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-32 * 24 * time.Hour)
	if err := errors.Join(os.WriteFile(old, nil, 0o755), os.Chtimes(old, long, long), os.Chtimes(used, long, long)); err != nil {
		t.Fatal(err)
	}
	if _, err := p.enter(programs); err != nil {
		t.Fatal(err)
	}
	if _, err := p.enter(fakeProgram(t, "two")); err != nil { // what is sent makes room
		t.Fatal(err)
	}
	if got := p.programs(); len(got) != 2 || !slices.Contains(got, used) {
		t.Errorf("left: %v", got)
	}
}

func TestAProgramThatWasChangedIsReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agentsh")
	var digests []string
	for _, text := range []string{"one", "other"} {
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			s, err := readSupervisor(path)
			if err != nil {
				t.Fatal(err)
			}
			digests = append(digests, s.digest)
		}
	}
	if digests[0] != digests[1] || digests[1] == digests[2] || digests[2] != digests[3] {
		t.Errorf("digests: %q", digests)
	}
}

func TestADirectoryThatOthersCanChangeIsNotUsed(t *testing.T) {
	for name, shell := range shells(t) {
		t.Run(name, func(t *testing.T) {
			programs := fakeProgram(t, "one")
			other := fmt.Sprintf("/var/tmp/agentsh-programs-%d", os.Geteuid())
			t.Cleanup(func() {
				_ = os.Remove(filepath.Join(other, "agentsh-"+programs[runtime.GOARCH].digest))
				_ = os.Remove(other) // fails if somebody uses it
			})
			for what, prepare := range map[string]func(dir string) error{
				"open to others": func(dir string) error { return errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(dir, 0o750)) },
				"a link": func(dir string) error {
					return errors.Join(os.MkdirAll(dir+".real", 0o700), os.Symlink(dir+".real", dir))
				},
				"a file": func(dir string) error {
					return errors.Join(os.MkdirAll(filepath.Dir(dir), 0o700), os.WriteFile(dir, nil, 0o600))
				},
			} {
				p := place{t, shell, t.TempDir()}
				if err := prepare(filepath.Join(p.home, ".cache/agentsh")); err != nil {
					t.Fatal(err)
				}
				if _, err := p.enter(programs); err != nil { // there is another directory
					t.Errorf("%s: %v", what, err)
				}
				if got := p.programs(); len(got) != 0 {
					t.Errorf("%s: it was used: %v", what, got)
				}
			}
		})
	}
}

func TestAPlaceThatCannotRunTheProgramSaysWhy(t *testing.T) {
	for name, shell := range shells(t) {
		t.Run(name, func(t *testing.T) {
			p, programs := place{t, shell, t.TempDir()}, fakeProgram(t, "one")
			other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
			_, err := p.enter(map[string]supervisor{other: programs[runtime.GOARCH]})
			if err == nil || !strings.Contains(err.Error(), "no agentsh for it") {
				t.Errorf("another machine: %v", err)
			}
			changed := programs[runtime.GOARCH]
			changed.digest = strings.Repeat("0", 64)
			_, err = p.enter(map[string]supervisor{runtime.GOARCH: changed})
			if err == nil || !strings.Contains(err.Error(), "the program arrived changed") {
				t.Errorf("another digest: %v", err)
			}
			if got := p.programs(); len(got) != 0 {
				t.Errorf("left: %v", got)
			}
		})
	}
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	for connect, want := range map[string]string{
		"exec:false":                 "false: exit status 1: it must connect to a POSIX shell that reads commands from its standard input: try \"echo ",
		"exec:/no/such/program":      "no such file",
		"exec:echo no":               "the address must lead to a POSIX shell",
		"exec:env PATH=/no " + shell: "the shell of the place finds no uname on its PATH",
	} {
		c, err := Parse(connect, "")
		if err != nil {
			t.Fatal(err)
		}
		s, err := c.Open(context.Background())
		if err == nil {
			if err = enter(context.Background(), s, fakeProgram(t, "one")); err != nil {
				err = explain(s, err)
			}
			s.Kill()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", connect, err, want)
		}
	}
}

// A program ssh that says what OpenSSH says stands for one: what follows is a command line for a person.
func TestTheEndOfACarrierSaysWhatToTry(t *testing.T) {
	for _, tt := range []struct{ connect, says, want string }{
		{"ssh://h", "Host key verification failed.", "Host key verification failed.: run 'ssh h true' once: compare the key"},
		{"ssh://u@h:22", "Host key verification failed.", "run 'ssh -p 22 -l u h true' once"},
		{"ssh://u@h", "u@h: Permission denied (publickey).", "(publickey).: ssh must not need to ask: try 'ssh -l u h true', and load a key"},
		{
			"ssh://h", "@@@@\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n@@@@\nIT IS POSSIBLE\nHost key verification failed.",
			"the host shows another key than the known one: run 'ssh h true' by hand: it names",
		},
		{"ssh://h", "ssh: Could not resolve hostname h: Name or service not known", "not known: 'ssh h true' must succeed: compare the name"},
		{"ssh://h:1", "ssh: connect to host h port 1: Connection refused", "refused: 'ssh -p 1 h true' must succeed"},
		{"exec:ssh -p", "Host key verification failed.", "run 'ssh -p true' once"},
		{"exec:ssh", "", "ssh: exit status 255: it must connect to a POSIX shell"},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(dir+"/ssh", []byte("#!/bin/sh\n[ -z \""+tt.says+"\" ] || echo '"+tt.says+"' >&2\nexit 255\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", dir+":/usr/bin:/bin")
		c, err := Parse(tt.connect, "")
		if err != nil {
			t.Fatal(err)
		}
		s, err := c.Open(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if err = enter(context.Background(), s, fakeProgram(t, "one")); err == nil {
			t.Fatal("it entered")
		}
		if err = explain(s, err); !strings.Contains(err.Error(), tt.want) ||
			!strings.Contains(tt.says, "\n") && !strings.HasPrefix(err.Error(), tt.says) {
			t.Errorf("%s: %v, want %q", tt.connect, err, tt.want)
		}
		if errors.As(err, new(final)) == strings.HasPrefix(tt.says, "ssh: ") { // a host comes back
			t.Errorf("%s: tried again or not, against what it says: %v", tt.connect, err)
		}
		s.Kill()
	}
}

func TestEnteringEndsWithItsContext(t *testing.T) {
	c, err := Parse("exec:sleep 1000", "")
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Open(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Kill()
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(10*time.Millisecond, cancel)
	if err := enter(ctx, s, fakeProgram(t, "one")); !errors.Is(err, context.Canceled) {
		t.Errorf("enter: %v", err)
	}
}

func TestAddressesOfPlaces(t *testing.T) {
	for address, want := range map[string]string{
		"exec:docker exec -i c sh":      "docker exec -i c sh",
		"ssh://host":                    "-- host /bin/sh",
		"ssh://me@host:2222/":           "-p 2222 -l me -- host /bin/sh",
		"ssh://[::1]:22":                "-o RemoteCommand=none -p 22 -- ::1 /bin/sh",
		"exec:":                         "error: names no program",
		"host":                          "error: is no place",
		"ssh://":                        "error: names no host",
		"ssh://-oProxyCommand=x":        "error: names no host",
		"ssh://-oProxyCommand=x@host":   "error: names no user",
		"ssh://me:secret@host":          "error: has a password",
		"ssh://host/dir":                "error: has more than",
		"ssh://host?x=1":                "error: has more than",
		"ssh://host:port":               "error: invalid port",
		"tcp://host":                    "error: no host and port",
		"tcp://host:1":                  "error: needs the key of the place",
		"ws://me:secret@host":           "error: no place for credentials",
		"ssh://%2doProxyCommand=x@host": "error: names no user",
	} {
		c, err := Parse(address, "")
		if text, is := strings.CutPrefix(want, "error: "); is {
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %v, want %q", address, err, text)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("%s: the error has the password: %v", address, err)
			}
			continue
		}
		if err != nil || !strings.HasSuffix(strings.Join(c.(program).argv, " "), want) {
			t.Errorf("%s: %v, %v", address, c, err)
		}
	}
	for name, address := range map[string]string{NameSSH: "exec:sh", NameExec: "ssh://host", "cloud": "exec:sh", NameSocket: "exec:sh"} {
		if _, err := Open(name, address, "", Config{}); err == nil {
			t.Errorf("backend %s takes %s", name, address)
		}
	}
}

func TestACommandLineIsSplitAsAShellDoes(t *testing.T) {
	for text, want := range map[string][]string{
		"docker exec -i c sh":         {"docker", "exec", "-i", "c", "sh"},
		" a  b\tc ":                   {"a", "b", "c"},
		`sh -c 'exec ssh "$HOST" sh'`: {"sh", "-c", `exec ssh "$HOST" sh`},
		`a "b c"'d e' f\ g`:           {"a", "b cd e", "f g"},
		`'' ""`:                       {"", ""},
		`"a\"b\$c"`:                   {`a"b$c`},
		"~/x *.c {a,b} a=b":           {"~/x", "*.c", "{a,b}", "a=b"},
	} {
		got, err := words(text)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
	for _, text := range []string{"a 'b", `a "b`, "a $HOME", "a `b`", "a $(b)", "a | b", "a; b", "a > b", "a $((1))", "a & b", "(a)"} {
		if got, err := words(text); err == nil {
			t.Errorf("%s: %q", text, got)
		}
	}
}

// TestAProgramThatSandboxesRunStays sends the program twice at the same time: what the first stream started has its file.
func TestAProgramThatSandboxesRunStays(t *testing.T) {
	for name, shell := range shells(t) {
		t.Run(name, func(t *testing.T) {
			p := place{t, shell, t.TempDir()}
			programs := fakeProgram(t, "one")
			file := filepath.Join(p.home, ".cache/agentsh", "agentsh-"+programs[runtime.GOARCH].digest)
			var streams []Stream
			for range 2 {
				c, err := Parse("exec:env -i PATH="+os.Getenv("PATH")+" HOME="+p.home+" "+p.shell, "")
				if err != nil {
					t.Fatal(err)
				}
				s, err := c.Open(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(s.Kill)
				_, err = s.Write([]byte(makeScript(programs)))
				if said, failed := stdio.ReadLine(s, said); err != nil || failed != nil || !strings.HasPrefix(said, "need") {
					t.Fatal(said, err, failed)
				}
				streams = append(streams, s)
			}
			var first os.FileInfo
			for i, s := range streams {
				if err := push(s, programs[runtime.GOARCH]); err != nil {
					t.Fatal(err)
				}
				if said, err := stdio.ReadLine(s, said); err != nil || said != "start" {
					t.Fatal(said, err)
				}
				info, err := os.Stat(file)
				if err != nil {
					t.Fatal(err)
				}
				if first = cmp.Or(first, info); i == 1 && !os.SameFile(first, info) {
					t.Error("the program was replaced by the same one")
				}
			}
			if left := p.programs(); len(left) != 1 {
				t.Errorf("left: %q", left)
			}
		})
	}
}
