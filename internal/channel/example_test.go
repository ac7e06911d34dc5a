package channel_test

import (
	"context"
	"fmt"
	"io"
	"iter"
	"strings"

	"agentsh/internal/channel"
	"agentsh/internal/wire"
)

// echo is a server whose only command prints its arguments.
type echo struct{}

func (echo) Exec(_ context.Context, req wire.ExecRequest, s wire.Streams) (wire.Exit, wire.TreeEmpty, error) {
	_, err := io.WriteString(s.Stdout, strings.Join(req.Argv[1:], " ")+"\n")
	return wire.Exit{Kind: wire.ExitExited}, wire.TreeEmpty{}, err
}

func (echo) Files() channel.Files                           { return nil }
func (echo) Changes(context.Context) ([]wire.Change, error) { return nil, nil }
func (echo) Events(context.Context, wire.EventRequest) iter.Seq2[wire.Event, error] {
	return func(func(wire.Event, error) bool) {}
}

// Both sides hold a key pair and know the public key of the other side. Each
// command of the client is an SSH channel of its own.
func Example() {
	hostKey, hostPublic, err := channel.NewKeyPair()
	if err != nil {
		fmt.Println(err)
		return
	}
	key, public, err := channel.NewKeyPair()
	if err != nil {
		fmt.Println(err)
		return
	}
	outside, file, err := channel.Pair() // a socket pair; the file goes to a child
	if err != nil {
		fmt.Println(err)
		return
	}
	defer file.Close()
	inside, err := channel.FromFile(file)
	if err != nil {
		fmt.Println(err)
		return
	}
	server := channel.NewServer(inside, channel.ServerConfig{
		HostKey: hostKey, AuthorizedKey: public, Handler: echo{},
		Hello: wire.Hello{Version: wire.Current},
	})
	served := make(chan error, 1)
	go func() { served <- server.Serve(context.Background()) }()

	client, err := channel.NewClient(context.Background(), outside, channel.ClientConfig{Key: key, HostKey: hostPublic})
	if err != nil {
		fmt.Println(err)
		return
	}
	var out strings.Builder
	exit, err := client.Run(context.Background(), wire.ExecRequest{Argv: []string{"echo", "hello"}}, wire.Streams{Stdout: &out})
	fmt.Print(exit.Kind, " ", exit.Code, " ", err, ": ", out.String())
	_ = client.Close()
	<-served
	// Output:
	// exited 0 <nil>: hello
}
