package remote

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"mvdan.cc/sh/v3/syntax"

	"agentsh/internal/socket"
)

// Carrier opens streams to a place.
type Carrier interface {
	// Shell reports whether a POSIX shell reads its standard input at the other end.
	// Otherwise agentsh serve --listen answers there.
	Shell() bool
	// Check reports what this machine lacks to open a stream.
	Check() error
	// Open opens a stream. ctx applies to the opening only.
	Open(ctx context.Context) (Stream, error)
	// String names the place.
	String() string
}

// Stream is a stream to a place. Closing it ends what it is made of.
type Stream interface {
	net.Conn
	// Gone is closed when what the stream is made of has ended. Cause then returns the
	// reason, or nil.
	Gone() <-chan struct{}
	Cause() error
	// Kill closes the stream, ends what it is made of by force and waits for the end.
	Kill()
}

// Schemes of [Parse].
const (
	schemeExec = "exec:"
	schemeSSH  = "ssh://"
)

// Parse makes the carrier that an address of --connect names. keyFile has the key of a place
// that listens; see [socket.ReadKey].
func Parse(address, keyFile string) (Carrier, error) {
	if isSocket(address) {
		return parseSocket(address, keyFile)
	}
	switch {
	case keyFile != "":
		return nil, fmt.Errorf("%q takes no key: only a place that listens has one", address)
	case strings.HasPrefix(address, schemeExec):
		argv, err := words(address[len(schemeExec):])
		if err != nil {
			return nil, fmt.Errorf("%q: %w", address, err)
		}
		if len(argv) == 0 {
			return nil, fmt.Errorf("%q names no program: write exec:PROGRAM [ARGUMENT]", address)
		}
		return program{address, argv}, nil
	case strings.HasPrefix(address, schemeSSH):
		argv, err := sshCommand(address, "/bin/sh")
		return program{address, argv}, err
	}
	return nil, fmt.Errorf("%q is no place: write ssh://USER@HOST, exec:PROGRAM [ARGUMENT], %s", address, socket.Forms)
}

// words splits a command line as a shell does. Quotes and backslashes have their meaning;
// nothing is expanded.
func words(text string) ([]string, error) {
	var out []string
	for w, err := range syntax.NewParser(syntax.Variant(syntax.LangPOSIX)).WordsSeq(strings.NewReader(text)) {
		var word strings.Builder
		if err == nil {
			err = literal(&word, w.Parts, "")
		}
		if err != nil {
			return nil, fmt.Errorf("split the command line: %w", err)
		}
		out = append(out, word.String())
	}
	return out, nil
}

// literal writes the text of parts of a word. A backslash is that of its next character if
// that is one of escaped; empty: any.
func literal(to *strings.Builder, parts []syntax.WordPart, escaped string) error {
	for _, part := range parts {
		var err error
		switch p := part.(type) {
		case *syntax.Lit:
			for text := p.Value; text != ""; {
				before, after, found := strings.Cut(text, "\\")
				to.WriteString(before)
				if found && escaped != "" && !strings.ContainsAny(after[:min(1, len(after))], escaped) {
					to.WriteByte('\\')
				} else if found && after != "" { // the backslash goes, whatever follows stays
					to.WriteByte(after[0])
					after = after[1:]
				}
				text = after
			}
		case *syntax.SglQuoted:
			to.WriteString(p.Value)
		case *syntax.DblQuoted:
			err = literal(to, p.Parts, "$`\"\\")
		default:
			err = errors.New("no shell reads it: put $, ` and parentheses in single quotes")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// sshWords begin the command line of ssh.
var sshWords = []string{"ssh", "-T", "-a", "-x", "-o", "BatchMode=yes", "-o", "ClearAllForwardings=yes", "-o", "ServerAliveInterval=15",
	"-o", "RemoteCommand=none"}

// sshCommand is the command line of the system's ssh program. Its configuration, agent
// and known_hosts apply. It asks nothing, and forwards nothing to the place.
func sshCommand(address, command string) ([]string, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("address of the place: %w", err)
	}
	_, password := u.User.Password()
	switch {
	case u.Hostname() == "" || strings.HasPrefix(u.Hostname(), "-"):
		return nil, fmt.Errorf("%q names no host: write ssh://USER@HOST", address)
	case password:
		return nil, errors.New("the address of the place has a password: use a key, see ssh_config(5)")
	case strings.HasPrefix(u.User.Username(), "-"):
		return nil, fmt.Errorf("%q names no user", address)
	case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("%q has more than a user, a host and a port: write ssh://USER@HOST:PORT", address)
	}
	argv := slices.Clone(sshWords)
	if u.Port() != "" {
		argv = append(argv, "-p", u.Port())
	}
	if name := u.User.Username(); name != "" {
		argv = append(argv, "-l", name)
	}
	return append(argv, "--", u.Hostname(), command), nil
}

// DialSSH returns a function that connects to the standard input and output of a command on
// another machine, by the ssh program of this one.
func DialSSH(address, command string) (func(context.Context) (net.Conn, error), error) {
	argv, err := sshCommand(address, command)
	if err != nil {
		return nil, err
	}
	p := program{address, argv}
	return func(ctx context.Context) (net.Conn, error) {
		s, err := p.Open(ctx)
		if err != nil {
			return nil, err
		}
		return &explained{Stream: s}, nil
	}, nil
}

// explained is a stream whose first read tells why there is nothing to read.
type explained struct {
	Stream
	read bool // touched by the reader alone
}

func (s *explained) Read(p []byte) (int, error) {
	n, err := s.Stream.Read(p)
	if s.read = s.read || n > 0; err != nil && !s.read {
		err = explain(s.Stream, err)
	}
	return n, err
}

// explain returns why a stream ended, if that explains err.
func explain(s Stream, err error) error {
	var said refusal
	if errors.As(err, &said) {
		return err
	}
	t := time.NewTimer(time.Second) // the stream breaks shortly before the end of its program
	defer t.Stop()
	select {
	case <-s.Gone():
	case <-t.C:
		return err
	}
	cause := s.Cause()
	if cause == nil {
		return err
	}
	if p, ok := s.(*pipe); ok {
		next, again := nextStep(p.cmd.Args, cause.Error())
		if next != "" {
			cause = fmt.Errorf("%w: %s", cause, next)
		}
		if next != "" && !again {
			cause = final{cause}
		}
	}
	return cause
}

// final is the error of a stream that another attempt would get as well.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

// nextStep says what to try after the program of a stream ended with a message; empty: the
// message says it. again: the same may work later.
func nextStep(argv []string, message string) (next string, again bool) {
	ssh := strings.Join(argv, " ")
	if rest := argv[min(len(argv), len(sshWords)):]; slices.Equal(argv[:len(argv)-len(rest)], sshWords) {
		ssh = strings.TrimSuffix(strings.Replace(strings.Join(append([]string{"ssh"}, rest...), " "), " -- ", " ", 1), " /bin/sh")
	}
	switch {
	case message == otherKey:
		return "run '" + ssh + " true' by hand: it names the line of the known key. Compare the key with that of the place. " +
			"If the place has a new one, remove that line, and run it again to accept the key", false
	case strings.Contains(message, "Host key verification failed"):
		return "run '" + ssh + " true' once: compare the key that it shows with the one of the place, and accept it", false
	case strings.Contains(message, "Permission denied ("):
		return "ssh must not need to ask: try '" + ssh + " true', and load a key with ssh-add, or name one in ~/.ssh/config", false
	case strings.HasPrefix(message, argv[0]+": exit status"):
		return "it must connect to a POSIX shell that reads commands from its standard input: try \"echo 'echo yes' | " +
			strings.Join(argv, " ") + "\", which must print yes", false
	case strings.HasPrefix(message, "ssh: connect to host ") || strings.HasPrefix(message, "ssh: Could not resolve hostname "):
		return "'" + ssh + " true' must succeed: compare the name and the port with those of the place, and see that sshd runs there", true
	}
	return "", false
}
