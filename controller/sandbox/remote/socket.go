package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"agentsh/controller/sandbox"
	"agentsh/internal/socket"
	"agentsh/internal/stdio"
	"agentsh/internal/wire"
)

// isSocket reports whether an address is that of a place that listens.
func isSocket(address string) bool {
	return slices.ContainsFunc(socket.Schemes, func(s string) bool { return strings.HasPrefix(address, s) })
}

// listening is a place where agentsh serve --listen answers.
type listening struct {
	address socket.Address
	key     *socket.Key
}

func parseSocket(address, keyFile string) (Carrier, error) {
	a, err := socket.ParseAddress(address)
	if err != nil {
		return nil, err
	}
	l := listening{address: a}
	switch {
	case keyFile != "":
		l.address, l.key, err = a.ReadPlace(keyFile)
	case a.NeedsKey():
		err = fmt.Errorf("%s needs the key of the place: name its file with --connect-key, or connect_key in the harness", a)
	}
	return l, err
}

// Shell implements [Carrier].
func (listening) Shell() bool { return false }

// Check implements [Carrier].
func (listening) Check() error { return nil }

func (l listening) String() string { return l.address.String() }

// Open implements [Carrier].
func (l listening) Open(ctx context.Context) (Stream, error) {
	s := &connected{}
	var err error
	s.Conn, err = socket.Dial(ctx, l.address, l.key, &s.messages)
	if err != nil {
		return nil, explainDial(err)
	}
	return s, nil
}

// explainDial says what to do about a place that could not be reached.
func explainDial(err error) error {
	var op *net.OpError
	switch {
	case errors.Is(err, socket.ErrKey):
		return fmt.Errorf("%w: write the first line of the key's file into that of the place, and start 'agentsh serve' there again", err)
	case errors.As(err, &op) && op.Op == "dial":
		return fmt.Errorf("%w: is 'agentsh serve --listen' running there, and is the address right?", err)
	}
	return err
}

// connected is a stream to a place that listens.
type connected struct {
	*socket.Conn
	messages sandbox.Tail
}

// Cause implements [Stream].
func (s *connected) Cause() error {
	if last := s.messages.LastMessage(); last != "" {
		return errors.New(last)
	}
	return s.Err()
}

// Kill implements [Stream].
func (s *connected) Kill() {
	_ = s.Close()
	<-s.Gone()
}

// greet reads the first frame of agentsh serve --listen.
func greet(ctx context.Context, s deadliner) error {
	stop := context.AfterFunc(ctx, func() { _ = s.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := limit(ctx, s, answerWait); err != nil {
		return err
	}
	return readHello(ctx, s)
}

// readHello reads the first frame of agentsh serve.
func readHello(ctx context.Context, s io.Reader) error {
	var hello wire.PlaceHello
	err := stdio.Read(s, &hello, wire.MaxMessage)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("agentsh of the place: %w", err)
	}
	if hello.Version.Major != wire.Current.Major {
		return refusal(fmt.Sprintf("the agentsh of the place (%.40q) speaks version %d, this agentctl %d: install the same release on both sides",
			hello.Build, hello.Version.Major, wire.Current.Major))
	}
	return nil
}
